#include <algorithm>

#include "gateway/steps.hpp"

namespace akv::gateway {
namespace {

// The payload is not what its envelope says. No wonder, and no card's fault, where its memory went away.
void damaged(Command& command, Outcomes& outcomes) {
  if (command.target().is_lost()) return outcomes.fail(*command.batch, command.entry, Why::memory_lost);
  outcomes.mismatch(*command.batch, command.entry, kv::Mismatch::payload_crc);
}

// All of the payload was taken and is what was stored.
void verified(Command& command, Outcomes& outcomes, HotBlocks& hot) {
  const auto length = static_cast<std::uint32_t>(command.arrival->own.size());
  hot.keep(*command.arrival, *command.batch, command.entry);
  outcomes.hit(*command.batch, command.entry, length);
}

// All segments are there: only their CRCs, taken in order, tell whether they belong together.
void finish_segments(Command& command, Outcomes& outcomes, HotBlocks& hot) {
  Batch& batch = *command.batch;
  const SegmentedValue& value = *command.target().segments;
  HotBlocks::Arrival& arrival = command.arrival.emplace(hot.begin(batch, command.entry, value.split.total()));
  for (std::uint16_t i = 0; i < value.split.count(); ++i) {
    hot.take(arrival, value.split.offset(i) + value.split.length(i));
    if (arrival.crc.value() != value.crcs[i]) return damaged(command, outcomes);
  }
  verified(command, outcomes, hot);
}

void begin_segments(Command& command, const kv::Envelope& first) {
  Entry& entry = command.target();
  const kv::Split split(first.total_length, first.segment_count);
  entry.segments = std::make_unique<SegmentedValue>(
      SegmentedValue{.split = split, .next = 1, .done = 0, .first = first, .crcs = {}});
  entry.segments->crcs.resize(split.count());
  entry.segments->crcs[0] = first.payload_crc;
  command.batch->more.push_back(command.entry);
}

void first_arrived(Command& command, std::uint32_t value_size, Outcomes& outcomes, HotBlocks& hot) {
  Batch& batch = *command.batch;
  const Entry& entry = command.target();
  kv::Envelope envelope;
  auto wrong = kv::decode(command.envelope, envelope);
  if (wrong == kv::Mismatch::none) wrong = kv::verify_first(envelope, expected_value(command, value_size));
  if (wrong != kv::Mismatch::none) return outcomes.mismatch(batch, command.entry, wrong);
  if (envelope.total_length > entry.length) {
    return outcomes.too_small(batch, command.entry, envelope.total_length);
  }
  // A value stored through a card queue that took more at once than this one does.
  if (envelope.payload_length > command.bytes() - kv::kEnvelopeBytes) {
    return outcomes.fail(batch, command.entry, Why::too_large);
  }
  if (envelope.segment_count > 1) return begin_segments(command, envelope);
  if (!command.arrival) command.arrival = hot.begin(batch, command.entry, envelope.payload_length);
  hot.take(*command.arrival, envelope.payload_length);
  if (command.arrival->crc.value() != envelope.payload_crc) return damaged(command, outcomes);
  verified(command, outcomes, hot);
}

// The envelope is of what was asked for, in one piece that has room, if its value is as long as it says.
bool begins_well(const Command& command, kv::Envelope& envelope) {
  if (kv::decode(command.envelope, envelope) != kv::Mismatch::none || envelope.segment_count != 1)
    return false;
  if (envelope.payload_length > command.bytes() - kv::kEnvelopeBytes) return false;
  const auto value_size = static_cast<std::uint32_t>(kv::kEnvelopeBytes + envelope.payload_length);
  return kv::verify_first(envelope, expected_value(command, value_size)) == kv::Mismatch::none;
}

void segment_arrived(Command& command, std::uint32_t value_size, Outcomes& outcomes, HotBlocks& hot) {
  SegmentedValue& value = *command.target().segments;
  kv::Envelope envelope;
  auto wrong = kv::decode(command.envelope, envelope);
  if (wrong == kv::Mismatch::none) {
    wrong = kv::verify_segment(envelope, expected_value(command, value_size), value.first, command.segment);
  }
  if (wrong != kv::Mismatch::none) return outcomes.mismatch(*command.batch, command.entry, wrong);
  value.crcs[command.segment] = envelope.payload_crc;
  if (++value.done == value.split.count() - 1) finish_segments(command, outcomes, hot);
}

}  // namespace

bool prepare_get(Command& command, std::uint32_t max_value_bytes, Outcomes& outcomes) {
  const Entry& entry = command.target();
  command.op = card::IoOp::retrieve;
  command.envelope = {};
  if (command.segment != 0) {
    const kv::Split& split = entry.segments->split;
    command.key = segment_key(command, split);
    command.set_value(entry.memory + split.offset(command.segment), split.length(command.segment));
    return true;
  }
  if (max_value_bytes <= kv::kEnvelopeBytes) {
    outcomes.fail(*command.batch, command.entry, Why::too_large);
    return false;
  }
  command.key = command.batch->keyspace->keys.value_key(entry.key);
  command.set_value(entry.memory, std::min<std::size_t>(entry.length, max_value_bytes - kv::kEnvelopeBytes));
  return true;
}

// A value in segments is taken when all of them are there, since their CRCs count in order.
void take_part_of_get(Command& command, std::uint32_t bytes, HotBlocks& hot) {
  if (command.segment != 0 || bytes < kv::kEnvelopeBytes) return;
  if (!command.arrival) {
    kv::Envelope envelope;
    if (!begins_well(command, envelope)) return;
    command.arrival = hot.begin(*command.batch, command.entry, envelope.payload_length);
  }
  hot.take(*command.arrival, std::min<std::size_t>(bytes - kv::kEnvelopeBytes, command.arrival->own.size()));
}

void conclude_get(Command& command, const card::IoResult& result, Outcomes& outcomes, HotBlocks& hot) {
  if (result.status != card::IoStatus::ok) {
    return outcomes.fail(*command.batch, command.entry, why_of(result.status));
  }
  if (result.value_size < kv::kEnvelopeBytes) {
    return outcomes.mismatch(*command.batch, command.entry, kv::Mismatch::short_value);
  }
  if (command.segment == 0) {
    first_arrived(command, result.value_size, outcomes, hot);
  } else {
    segment_arrived(command, result.value_size, outcomes, hot);
  }
}

}  // namespace akv::gateway
