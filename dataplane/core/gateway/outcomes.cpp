#include "gateway/outcomes.hpp"

#include <algorithm>

namespace akv::gateway {
namespace {

Counter miss_reason(Why why) noexcept {
  switch (why) {
    case Why::no_card:
      return Counter::miss_no_card;
    case Why::not_found:
      return Counter::miss_not_found;
    case Why::too_large:
      return Counter::miss_too_large;
    case Why::timeout:
      return Counter::miss_timeout;
    case Why::disconnected:
      return Counter::miss_disconnected;
    case Why::deadline:
      return Counter::miss_deadline;
    case Why::unneeded:
      return Counter::miss_unneeded;
    case Why::quarantined:
      return Counter::miss_quarantined;
    case Why::memory_lost:
      return Counter::miss_memory_lost;
    case Why::no_space:
    case Why::card_error:
      break;
  }
  return Counter::miss_card_error;
}

Counter loss_reason(Why why) noexcept {
  switch (why) {
    case Why::no_card:
      return Counter::lost_no_card;
    case Why::no_space:
      return Counter::lost_no_space;
    case Why::timeout:
      return Counter::lost_timeout;
    case Why::disconnected:
      return Counter::lost_disconnected;
    case Why::deadline:
      return Counter::lost_deadline;
    case Why::unneeded:
      return Counter::lost_unneeded;
    case Why::quarantined:
      return Counter::lost_quarantined;
    case Why::memory_lost:
      return Counter::lost_memory_lost;
    case Why::not_found:
    case Why::too_large:
    case Why::card_error:
      break;
  }
  return Counter::lost_card_error;
}

// Whether a miss has nothing to do with the entry's client: how long its batch waited, whether the client is
// still there, and what it did to its memory.
bool is_of_block(Counter reason, const Entry& entry) noexcept {
  // The client may have written to its block before the checksum was taken.
  if (reason == Counter::miss_payload_crc) return !entry.is_shared();
  return reason != Counter::miss_deadline && reason != Counter::miss_unneeded &&
         reason != Counter::miss_memory_lost;
}

// No gateway stores such a value, whatever its namespace, version and layout.
bool is_damage(kv::Mismatch what) noexcept {
  return what == kv::Mismatch::short_value || what == kv::Mismatch::magic ||
         what == kv::Mismatch::envelope_crc || what == kv::Mismatch::payload_crc;
}

}  // namespace

Why why_of(card::IoStatus status) noexcept {
  switch (status) {
    case card::IoStatus::not_found:
      return Why::not_found;
    case card::IoStatus::too_large:
      return Why::too_large;
    case card::IoStatus::no_space:
      return Why::no_space;
    case card::IoStatus::timeout:
      return Why::timeout;
    case card::IoStatus::busy:
    case card::IoStatus::disconnected:
      return Why::disconnected;
    case card::IoStatus::ok:
    case card::IoStatus::error:
      break;
  }
  return Why::card_error;
}

void Outcomes::stored(Batch& batch, std::uint32_t index) {
  counters_.add(Counter::stored);
  counters_.add(Counter::bytes_written, batch.entries[index].length);
  resolve(batch, index, wire::EntryStatus::ok);
}

void Outcomes::hit(Batch& batch, std::uint32_t index, std::uint32_t length) {
  counters_.add(Counter::hits);
  counters_.add(Counter::bytes_read, length);
  batch.entries[index].value_length = length;
  resolve(batch, index, wire::EntryStatus::ok);
}

void Outcomes::too_small(Batch& batch, std::uint32_t index, std::uint32_t length) {
  counters_.add(Counter::gets_too_small);
  batch.entries[index].value_length = length;
  resolve(batch, index, wire::EntryStatus::too_small);
}

void Outcomes::mismatch(Batch& batch, std::uint32_t index, kv::Mismatch what) {
  damaged_ = damaged_ || is_damage(what);
  miss(batch, index, miss_counter(what));
}

void Outcomes::present(Batch& batch, std::uint32_t index) {
  counters_.add(Counter::exists_present);
  resolve(batch, index, wire::EntryStatus::ok);
}

void Outcomes::absent(Batch& batch, std::uint32_t index) {
  resolve(batch, index, wire::EntryStatus::miss);
}

void Outcomes::removed(Batch& batch, std::uint32_t index) {
  resolve(batch, index, wire::EntryStatus::ok);
}

void Outcomes::fail(Batch& batch, std::uint32_t index, Why why) {
  switch (batch.op) {
    case BatchOp::put:
      return lose(batch, index, why);
    case BatchOp::get:
      return miss(batch, index, miss_reason(why));
    case BatchOp::exists:
    case BatchOp::exists_prefix:
      if (why != Why::unneeded) counters_.add(Counter::exists_unanswered);
      return resolve(batch, index, wire::EntryStatus::miss);
    case BatchOp::remove:
      counters_.add(Counter::deletes_failed);
      return resolve(batch, index, wire::EntryStatus::not_stored);
  }
}

void Outcomes::fail_listed(Batch& batch, std::vector<std::uint32_t>& list, std::uint32_t first, Why why) {
  // Not std::ranges: Clang 14 can't read this library's subranges.
  const auto unneeded =
      std::partition(list.begin(), list.end(), [first](std::uint32_t i) { return i < first; });
  for (auto index = unneeded; index != list.end(); ++index) {
    if (!batch.entries[*index].resolved) fail(batch, *index, why);
  }
  list.erase(unneeded, list.end());
}

void Outcomes::fail_behind(Batch& batch, std::uint32_t first, Why why) {
  fail_listed(batch, batch.more, first, why);
  fail_listed(batch, batch.again, first, why);
  // Entries are begun in their order, so those that were not lie behind any that was.
  const auto size = static_cast<std::uint32_t>(batch.entries.size());
  for (std::uint32_t index = std::exchange(batch.next, size); index < size; ++index) {
    if (!batch.entries[index].resolved) fail(batch, index, why);
  }
}

void Outcomes::resolve(Batch& batch, std::uint32_t index, wire::EntryStatus status, Counter reason) {
  Entry& entry = batch.entries[index];
  entry.status = status;
  entry.resolved = true;
  if (entry.leads) {
    landed_.push_back({batch.shared_from_this(), index, reason, is_of_block(reason, entry)});
    ++batch.awaited;
  }
  --batch.unresolved;
  settle(batch);
}

void Outcomes::given(Batch& batch) {
  --batch.awaited;
  settle(batch);
}

void Outcomes::settle(Batch& batch) {
  if (batch.settled || batch.unresolved != 0 || batch.unanswered != 0 || batch.awaited != 0) return;
  batch.settled = true;
  done_.push_back(batch.shared_from_this());
}

void Outcomes::miss(Batch& batch, std::uint32_t index, Counter reason) {
  counters_.add(Counter::misses);
  counters_.add(reason);
  resolve(batch, index, wire::EntryStatus::miss, reason);
}

void Outcomes::lose(Batch& batch, std::uint32_t index, Why why) {
  if (why == Why::too_large) {
    counters_.add(Counter::puts_too_large);
    return resolve(batch, index, wire::EntryStatus::too_large);
  }
  counters_.add(Counter::lost_puts);
  counters_.add(loss_reason(why));
  resolve(batch, index, wire::EntryStatus::not_stored);
}

}  // namespace akv::gateway
