#include "card/controller.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "base/events.hpp"
#include "card/io_queue.hpp"
#include "card/nvme_card.hpp"
#include "card/trouble.hpp"
#include "nvme/status.hpp"

namespace akv::card {
namespace {

enum Tag : std::uint32_t { kBringUp, kKeepAlive, kAsyncEvent, kControllerStatus, kLogPage, kAbort };

constexpr std::uint32_t kMostAborts = 16;
static_assert(kMostAborts + 4 < kAdminDepth);
// A card that was live for less is flapping: its backoff goes on growing.
constexpr std::chrono::seconds kSteady{10};

std::string text_of(const CardPath& path) {
  const bool v6 = path.traddr.find(':') != std::string::npos;
  return path.transport + "://" + (v6 ? "[" + path.traddr + "]" : path.traddr) + ":" + path.trsvcid;
}

}  // namespace

Controller::Controller(NvmeCard& card, std::function<void()> on_stopped)
    : card_(card),
      reactor_(*card.workers[card.owner]),
      config_(*card.config),
      on_stopped_(std::move(on_stopped)),
      backoff_(config_.backoff_first, config_.backoff_cap, make_uniform()) {}

Controller::~Controller() = default;

void Controller::start(std::vector<CardPath> paths) {
  paths_ = std::move(paths);
  if (!stopping_) attempt();
}

void Controller::set_paths(std::vector<CardPath> paths) {
  paths_ = std::move(paths);
  path_index_ = 0;
  tried_paths_ = 0;
  if (phase_ == Phase::waiting) {
    backoff_.reset();
    cancel_timers();
    return attempt();
  }
  if (phase_ == Phase::closing) retry_at_once_ = true;
  const bool in_use = phase_ == Phase::admin || phase_ == Phase::queues || phase_ == Phase::live;
  if (!in_use || std::ranges::find(paths_, *path_) != paths_.end()) return;
  retry_at_once_ = true;
  fail(Trouble::path_removed, "the path is not listed any more");
}

void Controller::stop() {
  if (std::exchange(stopping_, true)) return;
  if (phase_ == Phase::idle || phase_ == Phase::waiting) {
    close_all("the card was taken out of the set");
  } else if (phase_ != Phase::closing && phase_ != Phase::stopped) {
    fail(Trouble::none, "the card was taken out of the set");
  }
}

// The next listed path that this transport can use; says in the card's status why there is none.
std::optional<fabric::TcpAddress> Controller::next_address() {
  std::string reason = "no path is listed";
  for (std::size_t tries = 0; tries < paths_.size(); ++tries) {
    path_ = paths_[path_index_ % paths_.size()];
    card_.status.set_path(text_of(*path_));
    if (path_->transport == "tcp") {
      try {
        return fabric::TcpAddress(path_->traddr, path_->trsvcid);
      } catch (const std::invalid_argument& bad) {
        reason = bad.what();
      }
    } else {
      reason = "transport \"" + path_->transport + "\" is not one of this build (tcp)";
    }
    ++path_index_;
  }
  fail(Trouble::no_path, reason);
  return std::nullopt;
}

void Controller::attempt() {
  ++generation_;
  phase_ = Phase::admin;
  queues_asked_ = queues_answered_ = 0;
  connected_mask_ = 0;
  status_asked_ = false;
  aborts_outstanding_ = 0;
  card_.status.count_attempt();
  card_.status.set_connecting();
  address_ = next_address();
  if (!address_) return;
  bring_up_ =
      std::make_unique<BringUp>(card_.identity, static_cast<std::uint32_t>(config_.keep_alive.count()),
                                config_.queue_depth, static_cast<std::uint16_t>(card_.workers.size()));
  admin_ = fabric::make_tcp_queue_pair(reactor_,
                                       fabric::TcpQueuePairConfig{.address = *address_,
                                                                  .connect_timeout = config_.connect_timeout,
                                                                  .depth = kAdminDepth,
                                                                  .in_capsule_bytes = 0,
                                                                  .header_digest = config_.header_digest,
                                                                  .data_digest = config_.data_digest},
                                       *this);
  admin_->start();
  // A connection that does not come about has a timer of its own, which is the earlier one.
  if (phase_ != Phase::admin) return;
  attempt_timer_ = reactor_.call_after(config_.connect_timeout, [this] {
    attempt_timer_ = 0;
    fail(Trouble::hung, "not live within " + std::to_string(config_.connect_timeout.count()) + " ms");
  });
}

void Controller::send(const fabric::Command& command, std::uint32_t tag) {
  // Keep-alive, status, event request, log page and kMostAborts are the most that are outstanding.
  [[maybe_unused]] const bool taken = admin_->submit(command, tag);
}

void Controller::on_open() noexcept {
  send(bring_up_->command(), kBringUp);
}

void Controller::on_response(std::uint32_t tag, const fabric::Response& response) noexcept {
  switch (static_cast<Tag>(tag)) {
    case kBringUp:
      return on_bring_up(response);
    case kKeepAlive:
      return on_keep_alive(response.cqe.status());
    case kAsyncEvent:
      return on_async_event(response);
    case kControllerStatus:
      return on_controller_status(response.cqe);
    case kLogPage:
      event_request_due_ = true;
      return;
    case kAbort:  // whether it was aborted is told by the command's own answer
      --aborts_outstanding_;
      return;
  }
}

void Controller::on_keep_alive(nvme::Status status) {
  keep_alive_sent_.reset();
  if (status != nvme::kSuccess)
    fail(Trouble::refused, "keep-alive was refused: " + nvme::describe_status(status));
}

void Controller::on_bring_up(const fabric::Response& response) {
  const bool first = !bring_up_->connected();
  switch (bring_up_->on_response(response)) {
    case BringUp::Next::send:
      send(bring_up_->command(), kBringUp);
      break;
    case BringUp::Next::wait_and_send:
      step_timer_ = reactor_.call_after(kReadyPoll, [this] {
        step_timer_ = 0;
        send(bring_up_->command(), kBringUp);
        admin_->flush();
      });
      break;
    case BringUp::Next::done:
      return open_queues();
    case BringUp::Next::failed:
      return fail(bring_up_->failure(), bring_up_->reason());
  }
  // The controller counts from Connect on.
  if (first) keep_alive_timer_ = reactor_.call_after(config_.keep_alive / 2, [this] { keep_alive_tick(); });
}

void Controller::open_queues() {
  phase_ = Phase::queues;
  const ControllerFacts& facts = bring_up_->facts();
  queues_asked_ = facts.queues;
  for (std::size_t worker = 0; worker < queues_asked_; ++worker) {
    const QueueOrder order{generation_, static_cast<std::uint16_t>(worker + 1), facts, *address_};
    card_.post(card_.owner, worker,
               [card = card_.shared_from_this(), worker, order] { card->queues[worker]->open(order); });
  }
}

void Controller::on_queue_open(std::size_t worker, std::uint64_t generation) {
  if (generation != generation_ || phase_ != Phase::queues) return;
  connected_mask_ |= std::uint64_t{1} << worker;
  on_queue_answer();
}

void Controller::on_queue_lost(std::size_t worker, std::uint64_t generation, Trouble trouble,
                               const std::string& reason) {
  if (generation != generation_) return;
  if (phase_ == Phase::queues && trouble == Trouble::refused) {
    refusal_ = reason;
    on_queue_answer();
  } else if (phase_ == Phase::queues || phase_ == Phase::live) {
    fail(trouble, "I/O queue " + std::to_string(worker + 1) + ": " + reason);
  }
}

void Controller::on_queue_answer() {
  if (++queues_answered_ < queues_asked_) return;
  if (connected_mask_ == 0) return fail(Trouble::too_few_queues, refusal_);
  go_live();
}

void Controller::go_live() {
  phase_ = Phase::live;
  live_since_ = reactor_.now();
  tried_paths_ = 0;
  reactor_.cancel(std::exchange(attempt_timer_, 0));
  event_request_due_ = true;
  card_.strikes.store(0);
  told_trouble_ = card_.recent.at(live_since_);
  card_.max_value_bytes.store(bring_up_->facts().max_value_bytes);
  card_.serving.store(connected_mask_);
  card_.live_generation.store(generation_);
  if (std::exchange(was_live_, true)) card_.status.count_reconnect();
  const auto connected = static_cast<std::size_t>(std::popcount(connected_mask_));
  card_.status.set_live(connected < card_.workers.size()
                            ? std::to_string(connected) + " I/O queues for " +
                                  std::to_string(card_.workers.size()) + " workers"
                            : "");
}

void Controller::keep_alive_tick() {
  keep_alive_timer_ = 0;
  if (keep_alive_sent_ && reactor_.now() - *keep_alive_sent_ >= config_.keep_alive) {
    return fail(Trouble::hung,
                "keep-alive lost: no answer within " + std::to_string(config_.keep_alive.count()) + " ms");
  }
  keep_alive_timer_ = reactor_.call_after(config_.keep_alive / 2, [this] { keep_alive_tick(); });
  if (!keep_alive_sent_) {
    keep_alive_sent_ = reactor_.now();
    send({.sqe = nvme::make_keep_alive()}, kKeepAlive);
  }
  ask_for_status();
  tell_trouble();
  // Asked for again with the tick only, so that a controller that answers at once can't keep us busy.
  if (phase_ == Phase::live && std::exchange(event_request_due_, false)) {
    send({.sqe = nvme::make_async_event_request()}, kAsyncEvent);
  }
  admin_->flush();
}

// Once for each change, for as long as the card stays in service.
void Controller::tell_trouble() {
  const Trouble trouble = card_.recent.at(reactor_.now());
  if (phase_ != Phase::live || std::exchange(told_trouble_, trouble) == trouble) return;
  log_event(trouble == Trouble::none ? Level::info : Level::warning, "card_trouble",
            {{"serial", card_.serial}, {"trouble", to_string(trouble)}});
}

// A controller that answers keep-alives may have failed all the same (Base 2.0, 9.6.1 "Controller Fatal
// Status").
void Controller::ask_for_status() {
  if (phase_ != Phase::live || std::exchange(status_asked_, true)) return;
  send({.sqe = nvme::make_property_get(nvme::Property::csts)}, kControllerStatus);
}

void Controller::on_controller_status(const nvme::Cqe& cqe) {
  status_asked_ = false;
  if (cqe.status() != nvme::kSuccess) {
    return fail(Trouble::refused, "CSTS can't be read: " + nvme::describe_status(cqe.status()));
  }
  const nvme::Csts status{cqe.dw0};
  if (status.fatal())
    return fail(Trouble::controller_fatal, "the controller reports a fatal status (CSTS.CFS)");
  if (!status.ready())
    return fail(Trouble::controller_fatal, "the controller is not ready any more (CSTS.RDY)");
}

void Controller::on_async_event(const fabric::Response& response) {
  if (response.cqe.status() != nvme::kSuccess) return;  // this controller has no events
  const nvme::AsyncEvent event = nvme::parse_async_event(response.cqe.dw0);
  log_event(Level::warning, "card_async_event",
            {{"serial", card_.serial}, {"type", event.type}, {"info", event.info}});
  if (event.namespace_changed()) {
    retry_at_once_ = true;
    return fail(Trouble::namespaces_changed, "the controller's namespaces changed");
  }
  read_log_page(event.log_page);
}

// For its effect alone: until then the controller tells no further event of this kind (Base 2.0, 5.2).
void Controller::read_log_page(std::uint8_t page) {
  const iovec vector{log_page_.data(), log_page_.size()};
  send({.sqe = nvme::make_get_log_page(page, static_cast<std::uint32_t>(log_page_.size())),
        .direction = fabric::Direction::from_target,
        .data = std::span(&vector, 1)},
       kLogPage);
}

void Controller::abort(std::size_t worker, std::uint64_t generation, std::uint16_t cid) {
  if (generation != generation_ || phase_ != Phase::live) return;
  if (aborts_outstanding_ >= std::min<std::uint32_t>(bring_up_->facts().aborts, kMostAborts)) return;
  ++aborts_outstanding_;
  send({.sqe = nvme::make_abort(static_cast<std::uint16_t>(worker + 1), cid)}, kAbort);
  admin_->flush();
}

void Controller::on_closed(fabric::Ending how, const std::string& reason) noexcept {
  drop_admin();
  if (phase_ != Phase::closing) fail(trouble_of(how), reason);
}

// Out of service now; every socket is closed next, then comes the pause.
void Controller::fail(Trouble trouble, const std::string& reason) {
  if (phase_ == Phase::live && reactor_.now() - live_since_ >= kSteady) backoff_.reset();
  if (phase_ != Phase::live) {
    ++path_index_;
    ++tried_paths_;
  }
  if (!stopping_) {
    card_.status.set_trouble(trouble, reason);
    card_.recent.note(trouble, reactor_.now());
  }
  close_all(reason);
}

void Controller::close_all(const std::string& reason) {
  phase_ = Phase::closing;
  card_.live_generation.store(0);
  card_.serving.store(0);
  cancel_timers();
  keep_alive_sent_.reset();
  if (admin_) admin_->close(reason);
  queues_to_shut_ = queues_asked_ + 1;
  for (std::size_t worker = 0; worker < queues_asked_; ++worker) {
    card_.post(card_.owner, worker,
               [card = card_.shared_from_this(), worker, generation = generation_, reason] {
                 card->queues[worker]->close(reason);
                 card->post(worker, card->owner,
                            [card, generation] { card->controller->on_queue_shut(generation); });
               });
  }
  on_queue_shut(generation_);
}

void Controller::on_queue_shut(std::uint64_t generation) {
  if (generation != generation_ || --queues_to_shut_ > 0) return;
  if (stopping_) {
    phase_ = Phase::stopped;
    card_.status.set_stopped();
    on_stopped_();
    return;
  }
  wait_for_next_attempt();
}

void Controller::wait_for_next_attempt() {
  phase_ = Phase::waiting;
  const auto delay = std::exchange(retry_at_once_, false) ? std::chrono::milliseconds(0) : next_delay();
  step_timer_ = reactor_.call_after(delay, [this] {
    step_timer_ = 0;
    attempt();
  });
}

// Paths of one round follow each other quickly; rounds are apart by the backoff.
std::chrono::milliseconds Controller::next_delay() {
  const bool round_done = paths_.empty() || tried_paths_ % paths_.size() == 0;
  return round_done ? backoff_.next() : config_.backoff_first;
}

void Controller::cancel_timers() {
  for (TimerId* const timer : {&attempt_timer_, &step_timer_, &keep_alive_timer_}) {
    reactor_.cancel(std::exchange(*timer, 0));
  }
}

// It may be on the stack now; it goes when the event is over.
void Controller::drop_admin() {
  reactor_.defer([doomed = std::move(admin_)]() mutable { doomed.reset(); });
  admin_.reset();
}

}  // namespace akv::card
