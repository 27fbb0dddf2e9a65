#include <sys/uio.h>

#include <span>

#include "base/crc32c.hpp"
#include "base/guarded_memory.hpp"
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

void fill(Command& command, const kv::Split& split) {
  command.op = card::IoOp::store;
  command.key = segment_key(command, split);
  command.set_value(command.target().memory + split.offset(command.segment), split.length(command.segment));
}

kv::EnvelopeBytes envelope_of(const Command& command, const kv::Split& split, std::uint32_t crc) {
  return kv::encode({.key = command.target().key,
                     .namespace_id = command.batch->keyspace->namespace_id,
                     .segment_index = command.segment,
                     .segment_count = split.count(),
                     .payload_length = split.length(command.segment),
                     .total_length = split.total(),
                     .payload_crc = crc});
}

void fill_segment(Command& command) {
  const SegmentedValue& value = *command.target().segments;
  fill(command, value.split);
  command.envelope = envelope_of(command, value.split, value.crcs[command.segment]);
}

// A file that shrank lacks its end, so where a block's last byte is there, all of it is.
bool is_there(const Entry& entry) {
  const iovec last{entry.memory + entry.length - 1, 1};
  touch_pages(std::span(&last, 1));
  return !entry.is_lost();
}

}  // namespace

bool prepare_put(Command& command, std::uint32_t max_value_bytes, Outcomes& outcomes) {
  const Entry& entry = command.target();
  if (entry.segments != nullptr) {
    fill_segment(command);
    return true;
  }
  const auto split = kv::split_for(entry.length, max_value_bytes);
  if (!split) {
    outcomes.fail(*command.batch, command.entry, Why::too_large);
    return false;
  }
  const bool whole = split->count() == 1;
  if (!whole) begin_segments(command, *split);
  // Segments have their checksums already: of zeros where the client's memory went away meanwhile, and they
  // would vouch for them. A value in one piece has its checksum to come, and seal() asks again.
  if (!is_there(entry)) {
    outcomes.fail(*command.batch, command.entry, Why::memory_lost);
    return false;
  }
  if (!whole) {
    fill_segment(command);
    return true;
  }
  fill(command, *split);
  command.envelope = {};  // until seal(); no reader takes it for one
  return true;
}

void seal(Command& command) {
  const Entry& entry = command.target();
  if (command.batch->op != BatchOp::put || entry.segments != nullptr) return;
  const std::uint32_t crc = crc32c({entry.memory, entry.length});
  // It would vouch for zeros where the client's memory went away after prepare_put().
  if (!entry.is_lost()) command.envelope = envelope_of(command, kv::Split(entry.length, 1), crc);
}

void conclude_put(Command& command, const card::IoResult& result, Outcomes& outcomes) {
  if (result.status != card::IoStatus::ok) {
    return outcomes.fail(*command.batch, command.entry, why_of(result.status));
  }
  if (command.target().is_lost()) return outcomes.fail(*command.batch, command.entry, Why::memory_lost);
  if (command.segment == 0) return outcomes.stored(*command.batch, command.entry);
  SegmentedValue& value = *command.target().segments;
  if (++value.done == value.split.count() - 1) command.batch->more.push_back(command.entry);
}

}  // namespace akv::gateway
