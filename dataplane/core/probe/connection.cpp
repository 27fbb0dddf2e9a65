#include "probe/connection.hpp"

#include "nvme/status.hpp"

namespace akv::probe {
namespace {

constexpr auto kPatience = std::chrono::seconds(10);
constexpr auto kTurn = std::chrono::milliseconds(50);

}  // namespace

Connection::Connection(Reactor& reactor, const fabric::TcpQueuePairConfig& config)
    : reactor_(reactor), queue_pair_(reactor, config, *this) {
  queue_pair_.start();
  run_until([this] { return open_; }, "connecting");
}

Connection::~Connection() {
  client_ = nullptr;
  queue_pair_.close("done");
}

template <typename Done>
void Connection::run_until(Done done, const std::string& what) {
  const Deadline deadline(monotonic_now(), kPatience);
  while (!done()) {
    if (closed_) throw ProbeError(what + ": " + *closed_);
    if (deadline.passed(monotonic_now())) throw ProbeError(what + ": no answer within 10 s");
    reactor_.run_once(kTurn);
  }
}

fabric::Response Connection::call(const fabric::Command& command, const std::string& what) {
  response_.reset();
  if (!queue_pair_.submit(command, 0)) throw ProbeError(what + ": the queue takes no command");
  queue_pair_.flush();
  run_until([this] { return response_.has_value(); }, what);
  const auto status = response_->cqe.status();
  if (status != nvme::kSuccess) throw ProbeError(what + ": " + nvme::describe_status(status));
  return *response_;
}

fabric::QueuePair& Connection::hand_to(fabric::QueuePairClient& client) noexcept {
  client_ = &client;
  return queue_pair_;
}

void Connection::on_response(std::uint32_t tag, const fabric::Response& response) noexcept {
  if (client_ != nullptr) return client_->on_response(tag, response);
  response_ = response;
}

void Connection::on_closed(fabric::Ending how, const std::string& reason) noexcept {
  closed_ = reason;
  if (client_ != nullptr) client_->on_closed(how, reason);
}

}  // namespace akv::probe
