// EXISTS and DELETE. Where a value may lie in segments, the first segment's envelope tells how many there
// are.
#include "gateway/steps.hpp"

namespace akv::gateway {
namespace {

constexpr std::uint64_t room_for_payload(std::uint32_t max_value_bytes) noexcept {
  return max_value_bytes > kv::kEnvelopeBytes ? max_value_bytes - kv::kEnvelopeBytes : 0;
}

void prepare_look(Command& command) {
  command.op = card::IoOp::retrieve;
  command.key = command.batch->keyspace->keys.value_key(command.target().key);
  command.envelope = {};
  command.set_envelope();
}

void prepare_whole(Command& command, card::IoOp op) {
  command.op = op;
  command.key = command.batch->keyspace->keys.value_key(command.target().key);
  command.data = {};
}

void prepare_segment(Command& command, card::IoOp op) {
  command.op = op;
  command.key = segment_key(command, command.target().segments->split);
  command.data = {};
}

// What the card answered to a look at the first envelope.
std::optional<kv::Split> split_seen(const Command& command, const card::IoResult& result) {
  kv::Envelope envelope;
  auto wrong = kv::decode(command.envelope, envelope);
  if (wrong == kv::Mismatch::none) {
    wrong = kv::verify_first(envelope, expected_value(command, result.value_size));
  }
  if (wrong != kv::Mismatch::none) return std::nullopt;
  return kv::Split(envelope.total_length, envelope.segment_count);
}

// From here on the entry's commands are for its segments.
void go_on(Command& command, const kv::Split& split) {
  command.target().segments = std::make_unique<SegmentedValue>(
      SegmentedValue{.split = split, .next = 1, .done = 0, .first = {}, .crcs = {}});
  command.batch->more.push_back(command.entry);
}

// The prefix ends at the entry: what lies behind it is not asked for.
void end_prefix(const Command& command, Outcomes& outcomes) {
  if (command.batch->op != BatchOp::exists_prefix) return;
  outcomes.fail_behind(*command.batch, command.entry, Why::unneeded);
}

void absent(Command& command, Outcomes& outcomes) {
  outcomes.absent(*command.batch, command.entry);
  end_prefix(command, outcomes);
}

bool gone(const card::IoResult& result) noexcept {
  return result.status == card::IoStatus::ok || result.status == card::IoStatus::not_found;
}

}  // namespace

void prepare_exists(Command& command, std::uint32_t max_value_bytes) {
  if (command.segment != 0) return prepare_segment(command, card::IoOp::exist);
  const std::uint32_t longest = command.batch->keyspace->longest->load(std::memory_order_relaxed);
  if (longest > room_for_payload(max_value_bytes)) return prepare_look(command);
  prepare_whole(command, card::IoOp::exist);
}

void conclude_exists(Command& command, const card::IoResult& result, Outcomes& outcomes) {
  Batch& batch = *command.batch;
  if (result.status == card::IoStatus::not_found) return absent(command, outcomes);
  if (result.status != card::IoStatus::ok) {
    outcomes.fail(batch, command.entry, why_of(result.status));
    return end_prefix(command, outcomes);
  }
  if (command.segment != 0) {
    SegmentedValue& value = *command.target().segments;
    if (++value.done == value.split.count() - 1) outcomes.present(batch, command.entry);
    return;
  }
  if (command.op == card::IoOp::exist) return outcomes.present(batch, command.entry);
  const auto split = split_seen(command, result);
  if (!split) return absent(command, outcomes);  // a GET would say the same
  if (split->count() == 1) return outcomes.present(batch, command.entry);
  go_on(command, *split);
}

void prepare_remove(Command& command, std::uint32_t max_value_bytes) {
  if (command.target().segments != nullptr) return prepare_segment(command, card::IoOp::remove);
  if (command.batch->keyspace->max_value > room_for_payload(max_value_bytes)) return prepare_look(command);
  prepare_whole(command, card::IoOp::remove);
}

void conclude_remove(Command& command, const card::IoResult& result, Outcomes& outcomes) {
  Batch& batch = *command.batch;
  if (command.op == card::IoOp::retrieve) {
    if (result.status == card::IoStatus::not_found) return outcomes.removed(batch, command.entry);
    const bool answered = result.status == card::IoStatus::ok || result.status == card::IoStatus::error;
    if (!answered) return outcomes.fail(batch, command.entry, why_of(result.status));
    // What can't be read as a value of ours has no segments that anybody could reach.
    const auto split = result.status == card::IoStatus::ok ? split_seen(command, result) : std::nullopt;
    return go_on(command, split.value_or(kv::Split(1, 1)));
  }
  if (!gone(result)) return outcomes.fail(batch, command.entry, why_of(result.status));
  if (command.segment == 0) return outcomes.removed(batch, command.entry);
  SegmentedValue& value = *command.target().segments;
  if (++value.done == value.split.count() - 1) batch.more.push_back(command.entry);
}

}  // namespace akv::gateway
