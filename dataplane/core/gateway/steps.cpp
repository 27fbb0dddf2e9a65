#include "gateway/steps.hpp"

namespace akv::gateway {
namespace {

std::optional<Work> next_segment(Batch& batch) {
  while (!batch.more.empty()) {
    const std::uint32_t index = batch.more.back();
    Entry& entry = batch.entries[index];
    SegmentedValue& value = *entry.segments;
    const bool further = !entry.resolved && value.next < value.split.count();
    if (further) {
      const Work work{index, value.next++};
      if (value.next == value.split.count()) batch.more.pop_back();
      return work;
    }
    batch.more.pop_back();
    // All further segments are stored or removed: the first one makes the value visible, or takes it away.
    if (!entry.resolved) return Work{index, 0};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Work> next_work(Batch& batch) {
  if (const auto segment = next_segment(batch)) return segment;
  while (!batch.again.empty()) {
    const std::uint32_t index = batch.again.back();
    batch.again.pop_back();
    if (!batch.entries[index].resolved) return Work{index, 0};
  }
  while (batch.next < batch.entries.size()) {
    const std::uint32_t index = batch.next++;
    if (!batch.entries[index].resolved) return Work{index, 0};
  }
  return std::nullopt;
}

kv::Expected expected_value(const Command& command, std::uint32_t value_size) {
  return {.key = command.target().key,
          .namespace_id = command.batch->keyspace->namespace_id,
          .value_size = value_size};
}

card::CardKey segment_key(const Command& command, const kv::Split& split) {
  const kv::KeyDeriver& keys = command.batch->keyspace->keys;
  const kv::EngineKey& key = command.target().key;
  if (command.segment == 0) return keys.value_key(key);
  return keys.segment_key(key, command.segment, split.count(), split.total());
}

bool prepare(Command& command, std::uint32_t max_value_bytes, Outcomes& outcomes) {
  switch (command.batch->op) {
    case BatchOp::put:
      return prepare_put(command, max_value_bytes, outcomes);
    case BatchOp::get:
      return prepare_get(command, max_value_bytes, outcomes);
    case BatchOp::exists:
    case BatchOp::exists_prefix:
      prepare_exists(command, max_value_bytes);
      return true;
    case BatchOp::remove:
      prepare_remove(command, max_value_bytes);
      return true;
  }
  return false;
}

void take_part(Command& command, std::uint32_t bytes, HotBlocks& hot) {
  if (command.batch->op == BatchOp::get && !command.target().resolved) take_part_of_get(command, bytes, hot);
}

void conclude(Command& command, const card::IoResult& result, Outcomes& outcomes, HotBlocks& hot) {
  if (command.target().resolved) return;  // another segment failed before
  switch (command.batch->op) {
    case BatchOp::put:
      return conclude_put(command, result, outcomes);
    case BatchOp::get:
      return conclude_get(command, result, outcomes, hot);
    case BatchOp::exists:
    case BatchOp::exists_prefix:
      return conclude_exists(command, result, outcomes);
    case BatchOp::remove:
      return conclude_remove(command, result, outcomes);
  }
}

}  // namespace akv::gateway
