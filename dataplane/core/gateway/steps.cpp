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
    // Only a PUT comes back here: all further segments are stored, the first one makes the value visible.
    if (!entry.resolved) return Work{index, 0};
  }
  return std::nullopt;
}

void prepare_keyed(Command& command, card::IoOp op) {
  command.op = op;
  command.key = command.batch->keyspace->keys.value_key(command.target().key);
  command.data = {};
}

void conclude_exists(Command& command, const card::IoResult& result, Outcomes& outcomes) {
  Batch& batch = *command.batch;
  switch (result.status) {
    case card::IoStatus::ok:
      return outcomes.present(batch, command.entry);
    case card::IoStatus::not_found:
      outcomes.absent(batch, command.entry);
      break;
    default:
      outcomes.fail(batch, command.entry, why_of(result.status));
  }
  if (batch.op == BatchOp::exists_prefix) outcomes.fail_rest(batch, Why::unneeded);
}

void conclude_remove(Command& command, const card::IoResult& result, Outcomes& outcomes) {
  const bool gone = result.status == card::IoStatus::ok || result.status == card::IoStatus::not_found;
  if (gone) {
    outcomes.removed(*command.batch, command.entry);
  } else {
    outcomes.fail(*command.batch, command.entry, why_of(result.status));
  }
}

}  // namespace

std::optional<Work> next_work(Batch& batch) {
  if (const auto segment = next_segment(batch)) return segment;
  while (batch.next < batch.entries.size()) {
    const std::uint32_t index = batch.next++;
    if (!batch.entries[index].resolved) return Work{index, 0};
  }
  return std::nullopt;
}

bool prepare(Command& command, std::uint32_t max_value_bytes, Outcomes& outcomes) {
  switch (command.batch->op) {
    case BatchOp::put:
      return prepare_put(command, max_value_bytes, outcomes);
    case BatchOp::get:
      return prepare_get(command, max_value_bytes, outcomes);
    case BatchOp::exists:
    case BatchOp::exists_prefix:
      prepare_keyed(command, card::IoOp::exist);
      return true;
    case BatchOp::remove:
      prepare_keyed(command, card::IoOp::remove);
      return true;
  }
  return false;
}

void conclude(Command& command, const card::IoResult& result, Outcomes& outcomes) {
  if (command.target().resolved) return;  // another segment failed before
  switch (command.batch->op) {
    case BatchOp::put:
      return conclude_put(command, result, outcomes);
    case BatchOp::get:
      return conclude_get(command, result, outcomes);
    case BatchOp::exists:
    case BatchOp::exists_prefix:
      return conclude_exists(command, result, outcomes);
    case BatchOp::remove:
      return conclude_remove(command, result, outcomes);
  }
}

}  // namespace akv::gateway
