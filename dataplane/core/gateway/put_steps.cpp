#include "base/crc32c.hpp"
#include "gateway/steps.hpp"

namespace akv::gateway {
namespace {

// CRCs of the value up to the end of each segment, in one pass.
std::vector<std::uint32_t> running_crcs(const Entry& entry, const kv::Split& split) {
  std::vector<std::uint32_t> crcs;
  crcs.reserve(split.count());
  Crc32c crc;
  for (std::uint16_t i = 0; i < split.count(); ++i) {
    crc.update({entry.memory + split.offset(i), split.length(i)});
    crcs.push_back(crc.value());
  }
  return crcs;
}

void begin_segments(Command& command, const kv::Split& split) {
  Entry& entry = command.target();
  entry.segments = std::make_unique<SegmentedValue>(
      SegmentedValue{.split = split, .next = 1, .done = 0, .first = {}, .crcs = running_crcs(entry, split)});
  command.segment = entry.segments->next++;
  if (entry.segments->next < split.count()) command.batch->more.push_back(command.entry);
}

void fill(Command& command, const kv::Split& split, std::uint32_t crc) {
  const Entry& entry = command.target();
  command.op = card::IoOp::store;
  command.key = segment_key(command, split);
  command.envelope = kv::encode({.key = entry.key,
                                 .namespace_id = command.batch->keyspace->namespace_id,
                                 .segment_index = command.segment,
                                 .segment_count = split.count(),
                                 .payload_length = split.length(command.segment),
                                 .total_length = split.total(),
                                 .payload_crc = crc});
  command.set_value(entry.memory + split.offset(command.segment), split.length(command.segment));
}

}  // namespace

bool prepare_put(Command& command, std::uint32_t max_value_bytes, Outcomes& outcomes) {
  const Entry& entry = command.target();
  if (entry.segments == nullptr) {
    const auto split = kv::split_for(entry.length, max_value_bytes);
    if (!split) {
      outcomes.fail(*command.batch, command.entry, Why::too_large);
      return false;
    }
    if (split->count() == 1) {
      fill(command, *split, crc32c({entry.memory, entry.length}));
    } else {
      begin_segments(command, *split);
      fill(command, *split, entry.segments->crcs[command.segment]);
    }
    // The checksum is of zeros where the client's memory went away meanwhile, and would vouch for them.
    if (entry.is_lost()) outcomes.fail(*command.batch, command.entry, Why::memory_lost);
    return !entry.resolved;
  }
  fill(command, entry.segments->split, entry.segments->crcs[command.segment]);
  return true;
}

void conclude_put(Command& command, const card::IoResult& result, Outcomes& outcomes) {
  if (result.status != card::IoStatus::ok) {
    return outcomes.fail(*command.batch, command.entry, why_of(result.status));
  }
  if (command.segment == 0) return outcomes.stored(*command.batch, command.entry);
  SegmentedValue& value = *command.target().segments;
  if (++value.done == value.split.count() - 1) command.batch->more.push_back(command.entry);
}

}  // namespace akv::gateway
