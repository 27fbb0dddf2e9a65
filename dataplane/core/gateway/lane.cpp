#include "gateway/lane.hpp"

#include <algorithm>
#include <utility>

namespace akv::gateway {
namespace {

// What is charged to a session for each command, and for each answer that needs none, besides their bytes.
constexpr std::int64_t kCommandCost = 4096;
constexpr std::int64_t kLocalCost = 64;
// Of what needs no command at most so much in a row, in bytes that are copied, before other sockets are
// looked at.
constexpr std::int64_t kLocalWork = std::int64_t{1} << 20U;

bool writes(const Command& command) noexcept {
  return command.op == card::IoOp::store || command.op == card::IoOp::remove;
}

}  // namespace

Lane::Lane(const LaneContext& context, std::string serial)
    : context_(context),
      serial_(std::move(serial)),
      outcomes_(context.counters),
      hot_(context.cache, context.names, outcomes_, context.lane),
      after_(context.reactor, [this] { turn(); }) {}

Lane::~Lane() {
  context_.reactor.cancel(later_);
}

void Lane::submit(std::shared_ptr<Batch> batch) {
  line_up(std::move(batch));
  after_.request();
}

void Lane::line_up(std::shared_ptr<Batch> batch) {
  if (std::exchange(batch->waiting, true)) return;
  turns_.add(std::move(batch));
}

// Runs after each event that brought batches or answers: asks the card for more, then tells what is done.
void Lane::turn() {
  pump();
  settle();
}

void Lane::settle() {
  hot_.land(static_cast<std::size_t>(kLocalWork));
  for (auto& batch : hot_.take_again()) {
    line_up(std::move(batch));
    after_.request();
  }
  for (const auto& batch : outcomes_.take_done())
    report(batch);
  if (hot_.landing()) go_on_later();
}

void Lane::pump() {
  card::IoQueue* const queue = context_.cards.queue(context_.worker, serial_);
  if (queue == nullptr || !queue->ready()) return fail_all(Why::disconnected);
  if (!retry_refused(*queue)) return;
  std::int64_t local_work = 0;
  while (!turns_.empty() && has_room()) {
    if (local_work > kLocalWork) return go_on_later();
    if (!serve(*queue, local_work)) return;
  }
}

// Lets the reactor's other events have their turn first.
void Lane::go_on_later() {
  if (later_ != 0) return;
  later_ = context_.reactor.call_after(std::chrono::nanoseconds(0), [this] {
    later_ = 0;
    turn();
  });
}

// False when the card's queue is still full.
bool Lane::retry_refused(card::IoQueue& queue) {
  if (refused_ == nullptr) return true;
  Command& command = *std::exchange(refused_, nullptr);
  if (!command.target().resolved) return send(queue, command);
  // Another segment failed meanwhile: the batch may be answered, and its memory another's.
  recycle(command);
  return true;
}

bool Lane::has_room() const noexcept {
  return inflight_ < context_.limits.card_commands && inflight_bytes_ < context_.limits.card_bytes;
}

// One entry, or one command, of the batch whose turn it is; false when the card's queue is full.
bool Lane::serve(card::IoQueue& queue, std::int64_t& local_work) {
  const std::shared_ptr<Batch> batch = turns_.current();
  if (batch->abandoned.load(std::memory_order_relaxed)) outcomes_.fail_rest(*batch, Why::unneeded);
  const auto work = next_work(*batch);
  if (!work) {
    batch->waiting = false;
    turns_.retire();
    return true;
  }
  if (serve_here(*batch, *work)) {
    charge_here(batch->entries[work->entry], queue.max_value_bytes(), local_work);
    return true;
  }
  Command& command = acquire(batch, *work);
  const bool ready = prepare(command, queue.max_value_bytes(), outcomes_);
  turns_.charge(kCommandCost + (ready ? static_cast<std::int64_t>(command.bytes()) : 0));
  if (ready) return send(queue, command);
  recycle(command);
  return true;
}

// What needs no command: it is known here, or another command brings it.
bool Lane::serve_here(Batch& batch, const Work& work) {
  if (work.segment != 0) return false;
  switch (batch.op) {
    case BatchOp::get:
      return hot_.settle_get(batch, work.entry);
    case BatchOp::exists:
    case BatchOp::exists_prefix:
      return hot_.settle_exists(batch, work.entry);
    case BatchOp::put:
    case BatchOp::remove:
      break;
  }
  return false;
}

void Lane::charge_here(const Entry& entry, std::uint32_t max_value_bytes, std::int64_t& local_work) {
  const auto copied = static_cast<std::int64_t>(hot_.take_copied());
  local_work += kLocalCost + copied;
  // Who waits for another's answer pays for the bytes now that it is its turn, as for a command of its own:
  // when they are copied it may be anybody's.
  turns_.charge(kLocalCost + (entry.resolved ? copied : std::min(entry.length, max_value_bytes)));
}

bool Lane::send(card::IoQueue& queue, Command& command) {
  if (!queue.submit(command)) {
    refused_ = &command;
    return false;
  }
  ++inflight_;
  inflight_bytes_ += command.bytes();
  if (writes(command)) hot_.begin_write(*command.batch, command.entry);
  if (command.data.empty()) return true;
  ++command.batch->unanswered;
  ++command.batch->unreleased;
  ++command.target().unreleased;
  return true;
}

void Lane::sending(Command& command) noexcept {
  seal(command);
}

void Lane::arrived(Command& command, std::uint32_t bytes) noexcept {
  take_part(command, bytes, hot_);
}

void Lane::completed(Command& command, const card::IoResult& result) noexcept {
  if (!command.data.empty()) --command.batch->unanswered;
  conclude(command, result, outcomes_, hot_);
  if (command.arrival) hot_.discard(*command.arrival);
  command.arrival.reset();
  if (outcomes_.take_damaged()) blame_card();
  outcomes_.settle(*command.batch);
  if (!command.batch->more.empty()) line_up(command.batch);
  after_.request();
}

void Lane::blame_card() noexcept {
  card::IoQueue* const queue = context_.cards.queue(context_.worker, serial_);
  if (queue != nullptr) queue->report_corrupt();
}

void Lane::released(Command& command) noexcept {
  --inflight_;
  inflight_bytes_ -= command.bytes();
  if (writes(command)) hot_.end_write(*command.batch, command.entry);
  if (!command.data.empty()) let_go(command);
  recycle(command);
  after_.request();
}

// The card can't touch the command's buffers any more.
void Lane::let_go(Command& command) noexcept {
  Batch& batch = *command.batch;
  --command.target().unreleased;
  if (--batch.unreleased != 0 || !batch.finished) return;
  context_.counters.add(Counter::late_releases);
  context_.sink.drained(command.batch);
}

// A client that is told of a miss uses its block again at once: where a late command may still write to it,
// the answer says so.
void Lane::report(const std::shared_ptr<Batch>& batch) {
  for (Entry& entry : batch->entries) {
    entry.quarantined = entry.unreleased != 0;
    if (entry.quarantined && entry.is_shared() && batch->op == BatchOp::get)
      entry.status = wire::EntryStatus::late;
  }
  batch->finished = true;
  context_.sink.finished(batch);
  if (batch->unreleased == 0) context_.sink.drained(batch);
}

void Lane::tick() {
  const TimePoint now = context_.reactor.now();
  if (refused_ != nullptr && refused_->batch->deadline < now) fail_refused(Why::deadline);
  for (const auto& batch : turns_.all()) {
    if (batch->deadline < now) outcomes_.fail_rest(*batch, Why::deadline);
  }
  turn();
}

void Lane::fail_all(Why why) {
  fail_refused(why);
  const auto waiting = turns_.all();
  turns_.clear();
  for (const auto& batch : waiting) {
    batch->waiting = false;
    outcomes_.fail_rest(*batch, why);
  }
}

void Lane::fail_refused(Why why) {
  if (refused_ == nullptr) return;
  Command& command = *std::exchange(refused_, nullptr);
  if (!command.target().resolved) outcomes_.fail(*command.batch, command.entry, why);
  recycle(command);
}

Command& Lane::acquire(std::shared_ptr<Batch> batch, const Work& work) {
  if (unused_.empty()) {
    commands_.push_back(std::make_unique<Command>(*this));
    unused_.push_back(commands_.back().get());
  }
  Command& command = *unused_.back();
  unused_.pop_back();
  command.batch = std::move(batch);
  command.entry = work.entry;
  command.segment = work.segment;
  return command;
}

void Lane::recycle(Command& command) noexcept {
  command.batch.reset();
  unused_.push_back(&command);
}

}  // namespace akv::gateway
