#include "card/identify.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/reactor.hpp"
#include "fabric/tcp_queue_pair.hpp"
#include "nvme/status.hpp"

namespace akv::card {
namespace {

using nvme::Cns;
using Next = IdentifyWalk::Next;

constexpr std::size_t kMaxNamespaces = 32;  // bounds what a strange list can cost

template <std::size_t N>
std::string text_of(const char (&field)[N]) {
  std::string text(nvme::trimmed(field));
  std::ranges::replace_if(text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

IdentifyWalk::IdentifyWalk(const IdentifyTarget& target)
    : start_({.host_nqn = target.host_nqn,
              .host_id = target.host_id,
              .subsystem_nqn = target.subsystem_nqn,
              .serial = {},
              .namespace_uuid = {}},
             0, ControllerStart::CommandSets::as_offered) {}

fabric::Command IdentifyWalk::command() {
  fabric::Command command;
  const auto identify = [](Cns cns, std::uint32_t nsid) {
    return nvme::make_identify(static_cast<std::uint8_t>(cns), nsid, 0);
  };
  switch (step_) {
    case Step::start:
      return start_.command();
    case Step::controller:
      command.sqe = identify(Cns::controller, 0);
      break;
    case Step::namespaces:
      command.sqe = identify(Cns::active_namespaces, 0);
      break;
    case Step::descriptors:
      command.sqe = identify(Cns::namespace_descriptors, facts_.namespaces[index_].nsid);
      break;
  }
  buffer_.fill(std::byte{0});
  vector_[0] = {buffer_.data(), buffer_.size()};
  command.direction = fabric::Direction::from_target;
  command.data = vector_;
  return command;
}

Next IdentifyWalk::on_response(const fabric::Response& response) {
  if (step_ == Step::start) return on_start(response);
  const nvme::Status status = response.cqe.status();
  if (status != nvme::kSuccess) {
    if (step_ == Step::namespaces) return Next::done;  // an identity without namespaces is one too
    if (step_ == Step::descriptors) return next_descriptors();
    return fail("the controller can't be identified: " + nvme::describe_status(status));
  }
  if (response.received != nvme::kIdentifyBytes) {
    return fail("Identify was answered with " + std::to_string(response.received) + " bytes");
  }
  switch (step_) {
    case Step::namespaces:
      return on_namespaces();
    case Step::descriptors:
      return on_descriptors();
    default:
      return on_controller();
  }
}

Next IdentifyWalk::on_start(const fabric::Response& response) {
  const Next next = start_.on_response(response);
  if (next == Next::failed) return fail(start_.reason());
  return next == Next::done ? go(Step::controller) : next;
}

Next IdentifyWalk::go(Step step) noexcept {
  step_ = step;
  return Next::send;
}

Next IdentifyWalk::fail(std::string reason) {
  reason_ = std::move(reason);
  return Next::failed;
}

Next IdentifyWalk::on_controller() {
  const auto id = nvme::read_wire<nvme::IdentifyController>(std::span<const std::byte>(buffer_));
  facts_.serial = text_of(id.sn);
  facts_.model = text_of(id.mn);
  facts_.firmware = text_of(id.fr);
  facts_.nqn = text_of(id.subnqn);
  facts_.many_controllers = (id.cmic & nvme::kCmicManyControllers) != 0;
  return go(Step::namespaces);
}

Next IdentifyWalk::on_namespaces() {
  const auto list = nvme::read_wire<nvme::NamespaceList>(std::span<const std::byte>(buffer_));
  for (const std::uint32_t nsid : list.nsid) {
    if (nsid == 0 || facts_.namespaces.size() == kMaxNamespaces) break;
    facts_.namespaces.push_back({.nsid = nsid, .identifiers = {}});
  }
  return facts_.namespaces.empty() ? Next::done : go(Step::descriptors);
}

Next IdentifyWalk::on_descriptors() {
  facts_.namespaces[index_].identifiers = nvme::parse_descriptors(buffer_);
  return next_descriptors();
}

Next IdentifyWalk::next_descriptors() {
  return ++index_ < facts_.namespaces.size() ? Next::send : Next::done;
}

namespace {

// Drives one walk over one queue pair on a reactor of its own.
class Inquiry final : private fabric::QueuePairClient {
 public:
  Inquiry(const IdentifyTarget& target, std::chrono::milliseconds deadline)
      : walk_(target), deadline_(deadline), where_(target.address.text()) {
    queue_ = fabric::make_tcp_queue_pair(reactor_,
                                         fabric::TcpQueuePairConfig{.address = target.address,
                                                                    .connect_timeout = deadline,
                                                                    .depth = kAdminDepth,
                                                                    .in_capsule_bytes = 0},
                                         *this);
  }

  SubsystemFacts run() {
    [[maybe_unused]] const TimerId timer = reactor_.call_after(
        deadline_, [this] { end("no answer within " + std::to_string(deadline_.count()) + " ms"); });
    // In the loop, since a connection may be refused before start() returns.
    reactor_.defer([this] { queue_->start(); });
    reactor_.run();
    if (outcome_ == Outcome::done) return walk_.facts();
    if (outcome_ == Outcome::refused) throw Refused(where_ + ": " + walk_.reason());
    throw Unreachable(where_ + ": " + reason_);
  }

 private:
  enum class Outcome : std::uint8_t { open, done, refused };

  void on_open() noexcept override { ask(); }
  void on_response(std::uint32_t /*tag*/, const fabric::Response& response) noexcept override {
    switch (walk_.on_response(response)) {
      case Next::send:
        return ask();
      case Next::wait_and_send: {
        [[maybe_unused]] const TimerId again = reactor_.call_after(kReadyPoll, [this] { ask(); });
        return;
      }
      case Next::done:
        outcome_ = Outcome::done;
        return end("done");
      case Next::failed:
        outcome_ = Outcome::refused;
        return end(walk_.reason());
    }
  }
  void on_closed(fabric::Ending /*how*/, const std::string& reason) noexcept override {
    reason_ = reason;
    reactor_.stop();
  }

  void ask() {
    // One command is outstanding on a queue of 31.
    [[maybe_unused]] const bool taken = queue_->submit(walk_.command(), 0);
    queue_->flush();
  }
  // Not from within the queue pair's own event.
  void end(const std::string& reason) {
    reactor_.defer([this, reason] { queue_->close(reason); });
  }

  Reactor reactor_;
  IdentifyWalk walk_;
  const std::chrono::milliseconds deadline_;
  const std::string where_;
  std::shared_ptr<fabric::QueuePair> queue_;
  Outcome outcome_{Outcome::open};
  std::string reason_;
};

}  // namespace

SubsystemFacts identify_subsystem(const IdentifyTarget& target, std::chrono::milliseconds deadline) {
  return Inquiry(target, deadline).run();
}

}  // namespace akv::card
