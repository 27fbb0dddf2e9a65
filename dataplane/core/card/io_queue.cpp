#include "card/io_queue.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "card/controller.hpp"
#include "card/nvme_card.hpp"
#include "card/trouble.hpp"
#include "nvme/kv.hpp"
#include "nvme/status.hpp"

namespace akv::card {
namespace {

constexpr std::uint32_t kConnectTag = kNoEntry;
// Of the stores' data so much is prepared at once, which takes the time that a card takes to ask for it.
constexpr std::uint64_t kPreparedAtOnce = std::uint64_t{256} << 10U;
// A worker whose timer comes so late did not run meanwhile.
constexpr std::chrono::milliseconds kLate{10};

nvme::KvOpcode opcode_of(IoOp op) noexcept {
  switch (op) {
    case IoOp::store:
      return nvme::KvOpcode::store;
    case IoOp::retrieve:
      return nvme::KvOpcode::retrieve;
    case IoOp::exist:
      return nvme::KvOpcode::exist;
    case IoOp::remove:
      return nvme::KvOpcode::remove;
  }
  return nvme::KvOpcode::exist;
}

IoResult from_status(IoOp op, nvme::Status status) noexcept {
  switch (nvme::status_code(status)) {
    case nvme::kKvKeyDoesNotExist:
      return {IoStatus::not_found, status, 0};
    case nvme::kCapacityExceeded:
      return {IoStatus::no_space, status, 0};
    case nvme::kKvInvalidValueSize:
      return {op == IoOp::store ? IoStatus::too_large : IoStatus::error, status, 0};
    default:
      return {IoStatus::error, status, 0};
  }
}

fabric::TcpQueuePairConfig transport_config(const NvmeCardConfig& config, const QueueOrder& order) {
  return {.address = order.address,
          .connect_timeout = config.connect_timeout,
          .depth = order.facts.queue_depth,
          .in_capsule_bytes = order.facts.in_capsule_bytes,
          .header_digest = config.header_digest,
          .data_digest = config.data_digest};
}

}  // namespace

NvmeIoQueue::NvmeIoQueue(NvmeCard& card, std::size_t worker)
    : card_(card),
      worker_(worker),
      reactor_(*card.workers[worker]),
      entries_(card.config->queue_depth),
      dispatch_(reactor_, [this] { dispatch(); }) {}

bool NvmeIoQueue::ready() const noexcept {
  return state_ == State::open && card_.live_generation.load(std::memory_order_relaxed) == generation_;
}

bool NvmeIoQueue::submit(IoRequest& request) noexcept {
  if (!ready() || entries_.full() || inflight() >= facts_.queue_depth) return false;
  const auto bytes = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(request.bytes(), std::numeric_limits<std::uint32_t>::max()));
  const std::uint32_t index = entries_.accept(request, reactor_.now() + card_.config->io_timeout, bytes);
  if (next_to_send_ == kNoEntry) next_to_send_ = index;
  counters_.inflight.add();
  reactor_.expect(1);
  arm_timer();
  dispatch_.request();
  return true;
}

void NvmeIoQueue::open(const QueueOrder& order) {
  generation_ = order.generation;
  qid_ = order.qid;
  facts_ = order.facts;
  ordered_close_ = false;
  trouble_ = Trouble::none;
  listened_again_ = false;
  state_ = State::connecting;
  queue_pair_ = fabric::make_tcp_queue_pair(reactor_, transport_config(*card_.config, order), *this);
  queue_pair_->start();
}

void NvmeIoQueue::close(const std::string& reason) noexcept {
  ordered_close_ = true;
  if (queue_pair_) queue_pair_->close(reason);
}

void NvmeIoQueue::on_open() noexcept {
  connect_data_ = make_connect_data(card_.identity, facts_.cntlid);
  const iovec vector{&connect_data_, sizeof connect_data_};
  fabric::Command command;
  command.sqe = nvme::make_connect({.qid = qid_, .sqsize = static_cast<std::uint16_t>(facts_.queue_depth)});
  command.direction = fabric::Direction::to_target;
  command.data = std::span(&vector, 1);
  command.must_be_in_capsule = true;
  // The first command of a fresh queue pair is always taken.
  [[maybe_unused]] const bool taken = queue_pair_->submit(command, kConnectTag);
}

void NvmeIoQueue::on_connected(const fabric::Response& response) noexcept {
  const nvme::Status status = response.cqe.status();
  if (status != nvme::kSuccess) {
    trouble_ = Trouble::refused;
    return queue_pair_->close("Connect of I/O queue " + std::to_string(qid_) +
                              " was refused: " + nvme::describe_status(status));
  }
  state_ = State::open;
  card_.post(worker_, card_.owner,
             [card = card_.shared_from_this(), worker = worker_, generation = generation_] {
               card->controller->on_queue_open(worker, generation);
             });
}

// Sends what fits the bound of bytes on the wire; the rest waits in line.
void NvmeIoQueue::dispatch() noexcept {
  if (state_ != State::open) return;
  std::uint64_t prepared = 0;
  while (next_to_send_ != kNoEntry && send_next(prepared)) {
    if (prepared >= kPreparedAtOnce) {
      dispatch_later();
      break;
    }
  }
  if (queue_pair_) queue_pair_->flush();
}

// Cards that asked for the data of what was sent get it first.
void NvmeIoQueue::dispatch_later() noexcept {
  if (later_ != 0 || next_to_send_ == kNoEntry) return;
  later_ = reactor_.call_after(std::chrono::nanoseconds(0), [this] {
    later_ = 0;
    dispatch();
  });
}

// False when nothing more is to be sent for now. Adds the bytes of stores whose data was prepared.
bool NvmeIoQueue::send_next(std::uint64_t& prepared) noexcept {
  const std::uint32_t index = next_to_send_;
  Entry& entry = entries_[index];
  if (entry.bytes > facts_.max_value_bytes) {
    next_to_send_ = entry.next;
    finish(index, {IoStatus::too_large, 0, 0});
    return true;
  }
  if (bytes_on_wire_ > 0 && bytes_on_wire_ + entry.bytes > card_.config->max_inflight_bytes) return false;
  const bool store = entry.request->op == IoOp::store;
  const bool ahead = store && !queue_pair_->in_capsule(entry.bytes);
  if (store && !ahead) entry.request->sending();
  if (!queue_pair_->submit(command_for(*entry.request, entry.bytes), index)) {
    next_to_send_ = entry.next;
    finish(index, {IoStatus::error, 0, 0});
    return true;
  }
  entry.sent = true;
  bytes_on_wire_ += entry.bytes;
  next_to_send_ = entry.next;
  if (store) prepared += entry.bytes;
  return !ahead || prepare_behind(entry);
}

// The command goes ahead of its data, which is prepared while the card answers: before the next event, so
// before anything can ask for it. False when the connection ended, and the request with it.
bool NvmeIoQueue::prepare_behind(const Entry& entry) noexcept {
  queue_pair_->flush();
  if (state_ != State::open) return false;
  entry.request->sending();
  return true;
}

fabric::Command NvmeIoQueue::command_for(const IoRequest& request, std::uint32_t bytes) const noexcept {
  nvme::KvCommand kv;
  kv.opcode = opcode_of(request.op);
  kv.key = {request.key, static_cast<std::uint8_t>(request.key.size())};
  fabric::Command command;
  if (request.op == IoOp::store || request.op == IoOp::retrieve) {
    kv.size = bytes;
    command.data = request.data;
    command.direction =
        request.op == IoOp::store ? fabric::Direction::to_target : fabric::Direction::from_target;
  }
  command.sqe = nvme::make_kv(kv, facts_.nsid, {});
  return command;
}

void NvmeIoQueue::on_arrived(std::uint32_t tag, std::uint32_t bytes) noexcept {
  if (tag == kConnectTag || entries_[tag].timed_out) return;
  entries_[tag].request->arrived(bytes);
}

void NvmeIoQueue::on_response(std::uint32_t tag, const fabric::Response& response) noexcept {
  if (tag == kConnectTag) return on_connected(response);
  Entry& entry = entries_[tag];
  if (entry.timed_out) {
    IoRequest& request = entries_.remove(tag);
    counters_.inflight.subtract(1);
    reactor_.expect(-1);
    request.released();
  } else {
    if (card_.strikes.load(std::memory_order_relaxed) != 0) card_.strikes.store(0, std::memory_order_relaxed);
    listened_again_ = false;
    bytes_on_wire_ -= entry.bytes;
    const IoResult result = judge(entry, response);
    note(entry, response, result);
    counters_.count(entry.request->op, result.status,
                    entry.request->op == IoOp::retrieve ? response.received : entry.bytes);
    finish(tag, result);
  }
  if (next_to_send_ != kNoEntry) dispatch_.request();
}

IoResult NvmeIoQueue::judge(const Entry& entry, const fabric::Response& response) const noexcept {
  const IoOp op = entry.request->op;
  const nvme::Status status = response.cqe.status();
  if (status != nvme::kSuccess) return from_status(op, status);
  if (op != IoOp::retrieve) return {IoStatus::ok, 0, 0};
  // With the SUCCESS flag the size is not told: what came is all that is known.
  const std::uint32_t size = response.synthetic ? response.received : response.cqe.dw0;
  if (response.received != std::min(size, entry.bytes)) {
    return {IoStatus::error, nvme::kDataTransferError, size};
  }
  return {IoStatus::ok, 0, size};
}

// What is not right about an answer that came in time.
void NvmeIoQueue::note(const Entry& entry, const fabric::Response& response,
                       const IoResult& result) noexcept {
  const TimePoint now = reactor_.now();
  if (response.wrong_digest) {
    // Of memory that a client can write while it arrives: no ground to take the card away from others.
    card_.recent.note(Trouble::wrong_digest, now);
  } else if (result.status == IoStatus::error) {
    const bool refused = response.cqe.status() != nvme::kSuccess;
    card_.recent.note(refused ? Trouble::command_errors : Trouble::wrong_length, now);
  } else if (entry.deadline - now < card_.config->io_timeout / 2) {
    card_.recent.note(Trouble::slow, now);
  }
}

void NvmeIoQueue::report_corrupt() noexcept {
  card_.recent.note(Trouble::corrupt_values, reactor_.now());
}

// For an entry that is in time: its buffers are free at once.
void NvmeIoQueue::finish(std::uint32_t index, const IoResult& result) noexcept {
  IoRequest& request = entries_.remove(index);
  counters_.inflight.subtract(1);
  reactor_.expect(-1);
  request.completed(result);
  request.released();
}

// Sees to it that a timer is set for the earliest deadline; one that is set for an earlier time serves as
// well.
void NvmeIoQueue::arm_timer() noexcept {
  const TimePoint due = std::max(earliest_deadline(), judged_from_);
  if (due == TimePoint::max() || (timer_ != 0 && timer_due_ <= due)) return;
  reactor_.cancel(timer_);
  timer_due_ = due;
  timer_ = reactor_.call_at(due, [this] { on_timer(); });
}

TimePoint NvmeIoQueue::earliest_deadline() noexcept {
  TimePoint due = TimePoint::max();
  for (const std::uint32_t head : {entries_.waiting.head, entries_.quarantined.head}) {
    if (head != kNoEntry) due = std::min(due, entries_[head].deadline);
  }
  return due;
}

// While this worker did not run it could not hear the card: what was said meanwhile is in the socket, and
// what found no room there is still to come. So deadlines that passed are judged a little later: once, or
// again where answers came.
bool NvmeIoQueue::stood_still(TimePoint now) noexcept {
  const bool late = now - timer_due_ >= kLate && earliest_deadline() <= now;
  listened_again_ = late && !listened_again_;
  if (listened_again_) judged_from_ = now + card_.config->io_timeout / 4;
  return listened_again_;
}

void NvmeIoQueue::on_timer() noexcept {
  timer_ = 0;
  const TimePoint now = reactor_.now();
  if (stood_still(now)) return arm_timer();
  while (entries_.waiting.head != kNoEntry && entries_[entries_.waiting.head].deadline <= now) {
    time_out(entries_.waiting.head, now);
    if (state_ != State::open) return;
  }
  const std::uint32_t oldest = entries_.quarantined.head;
  if (oldest != kNoEntry && entries_[oldest].deadline <= now) {
    return take_out_of_service("a command stayed unanswered long after its deadline");
  }
  if (next_to_send_ != kNoEntry) dispatch_.request();
  arm_timer();
}

// Reports the timeout. Buffers of a command that was sent stay the card's until it answers or the socket
// closes; one that was not is no strike, for the card could not answer it.
void NvmeIoQueue::time_out(std::uint32_t index, TimePoint now) noexcept {
  Entry& entry = entries_[index];
  counters_.timeouts.add();
  card_.recent.note(Trouble::slow, now);
  if (!entry.sent) {
    next_to_send_ = entry.next;
    return finish(index, {IoStatus::timeout, 0, 0});
  }
  const std::uint32_t limit = card_.config->io_timeout_strikes;
  const std::uint32_t strikes = card_.strikes.fetch_add(1, std::memory_order_relaxed) + 1;
  bytes_on_wire_ -= entry.bytes;
  entries_.quarantine(index, now + card_.config->io_timeout * limit);
  entry.request->completed({IoStatus::timeout, 0, 0});
  if (strikes < limit) return ask_for_abort(index);
  take_out_of_service(std::to_string(strikes) + " commands in a row passed their deadline of " +
                      std::to_string(card_.config->io_timeout.count()) + " ms");
}

// An aborted command gives its buffers back at once.
void NvmeIoQueue::ask_for_abort(std::uint32_t index) noexcept {
  const auto cid = queue_pair_->command_id(index);
  if (!cid) return;
  card_.post(worker_, card_.owner,
             [card = card_.shared_from_this(), worker = worker_, generation = generation_, cid = *cid] {
               card->controller->abort(worker, generation, cid);
             });
}

// The card hangs. For every worker at once, before the controller hears of it.
void NvmeIoQueue::take_out_of_service(const std::string& reason) noexcept {
  std::uint64_t mine = generation_;
  card_.live_generation.compare_exchange_strong(mine, 0);
  trouble_ = Trouble::hung;
  if (queue_pair_) queue_pair_->close(reason);
}

void NvmeIoQueue::on_closed(fabric::Ending how, const std::string& reason) noexcept {
  state_ = State::idle;
  if (how != fabric::Ending::asked) trouble_ = trouble_of(how);
  std::uint64_t mine = generation_;
  if (trouble_ != Trouble::refused) card_.live_generation.compare_exchange_strong(mine, 0);
  drop_queue_pair();
  disconnect_all();
  if (!ordered_close_) report_lost(reason);
}

// It is on the stack now; it goes when the event is over.
void NvmeIoQueue::drop_queue_pair() noexcept {
  reactor_.defer([doomed = std::move(queue_pair_)]() mutable { doomed.reset(); });
  queue_pair_.reset();
}

// The socket is closed: nothing refers to any buffer.
void NvmeIoQueue::disconnect_all() noexcept {
  reactor_.cancel(std::exchange(timer_, 0));
  reactor_.cancel(std::exchange(later_, 0));
  next_to_send_ = kNoEntry;
  bytes_on_wire_ = 0;
  while (entries_.waiting.head != kNoEntry)
    finish(entries_.waiting.head, {IoStatus::disconnected, 0, 0});
  while (entries_.quarantined.head != kNoEntry) {
    IoRequest& request = entries_.remove(entries_.quarantined.head);
    counters_.inflight.subtract(1);
    reactor_.expect(-1);
    request.released();
  }
}

void NvmeIoQueue::report_lost(const std::string& reason) noexcept {
  card_.post(worker_, card_.owner,
             [card = card_.shared_from_this(), worker = worker_, generation = generation_, trouble = trouble_,
              reason] { card->controller->on_queue_lost(worker, generation, trouble, reason); });
}

}  // namespace akv::card
