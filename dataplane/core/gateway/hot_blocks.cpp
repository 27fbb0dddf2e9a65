#include "gateway/hot_blocks.hpp"

#include <algorithm>
#include <cstring>

namespace akv::gateway {
namespace {

// The copy of so much is in the CPU's nearest cache when its checksum is taken.
constexpr std::size_t kPiece = std::size_t{16} << 10U;

}  // namespace

BlockName HotBlocks::name_of(const kv::EngineKey& key, const SpaceId& space) const noexcept {
  return {.key = key, .space = space, .lane = lane_, .hash = names_.hasher(key)};
}

BlockName HotBlocks::name_of(const Batch& batch, std::uint32_t index) const noexcept {
  return name_of(batch.entries[index].key, batch.keyspace->space);
}

void HotBlocks::ask_ahead(std::span<const BlockName> names) const noexcept {
  for (const BlockName& name : names) {
    cache_.prefetch_bucket(name);
    names_.generations.prefetch(name.hash);
  }
  for (const BlockName& name : names)
    cache_.prefetch_block(name);
}

std::optional<ReadCache::Slot> HotBlocks::find(const BlockName& name) const {
  // Most keys have no copy: they are spared the look at the generations, which is far away in memory.
  const auto slot = cache_.find_any(name);
  if (!slot) return std::nullopt;
  const auto generation = names_.generations.stable(name.hash);
  return generation && cache_.is_present(*slot, *generation) ? slot : std::nullopt;
}

bool HotBlocks::settle_get(Batch& batch, std::uint32_t index) {
  const BlockName name = name_of(batch, index);
  const auto generation = names_.generations.stable(name.hash);
  if (!generation) return false;
  if (const auto slot = cache_.find(name, *generation)) {
    cache_.used(*slot);
    outcomes_.counters().add(Counter::cache_hits);
    give(batch, index, cache_.bytes(*slot));
    return true;
  }
  switch (flights_.join(name, *generation, {batch.shared_from_this(), index})) {
    case Flights::Part::leads:
      batch.entries[index].leads = true;
      return false;
    case Flights::Part::follows:
      return true;
    case Flights::Part::alone:
      break;
  }
  return false;
}

bool HotBlocks::settle_exists(Batch& batch, std::uint32_t index) {
  if (!find(name_of(batch, index))) return false;
  outcomes_.counters().add(Counter::exists_cached);
  outcomes_.present(batch, index);
  return true;
}

// The whole of a block to an entry that has room for it.
void HotBlocks::give(Batch& batch, std::uint32_t index, std::span<const std::byte> from) {
  const Entry& entry = batch.entries[index];
  const auto length = static_cast<std::uint32_t>(from.size());
  if (length > entry.length) return outcomes_.too_small(batch, index, length);
  std::memcpy(entry.memory, from.data(), length);
  copied_ += length;
  if (entry.is_lost()) return outcomes_.fail(batch, index, Why::memory_lost);
  outcomes_.hit(batch, index, length);
}

HotBlocks::Arrival HotBlocks::begin(const Batch& batch, std::uint32_t index, std::uint32_t length) {
  const Entry& entry = batch.entries[index];
  Arrival arrival{.own = {entry.memory, length}, .room = std::nullopt};
  if (!entry.leads) return arrival;
  const BlockName name = name_of(batch, index);
  if (names_.generations.stable(name.hash) == flights_.generation(name))
    arrival.room = cache_.reserve(length);
  return arrival;
}

void HotBlocks::take(Arrival& arrival, std::size_t until) {
  while (arrival.taken < until) {
    auto piece = arrival.own.subspan(arrival.taken, std::min(kPiece, until - arrival.taken));
    if (arrival.room) {
      const auto copy = cache_.room(*arrival.room).subspan(arrival.taken, piece.size());
      std::memcpy(copy.data(), piece.data(), piece.size());
      piece = copy;
    }
    arrival.crc.update(piece);
    arrival.taken += piece.size();
  }
}

void HotBlocks::keep(Arrival& arrival, Batch& batch, std::uint32_t index) {
  batch.entries[index].value_crc = arrival.crc.value();
  if (!arrival.room) return;
  const BlockName name = name_of(batch, index);
  // A command that changes the value may have been sent since begin().
  if (names_.generations.stable(name.hash) != flights_.generation(name)) return discard(arrival);
  cache_.commit(*std::exchange(arrival.room, std::nullopt), name, flights_.generation(name));
}

void HotBlocks::discard(Arrival& arrival) {
  if (const auto room = std::exchange(arrival.room, std::nullopt)) cache_.cancel(*room);
}

void HotBlocks::begin_landing(Landed landed) {
  Batch& batch = *landed.batch;
  Entry& leader = batch.entries[landed.index];
  leader.leads = false;
  Flight flight = flights_.land(names_.hasher(leader.key));
  if (flight.waiting.empty()) return outcomes_.given(batch);
  landing_.push_back({.landed = std::move(landed), .waiting = std::move(flight.waiting)});
}

void HotBlocks::land(std::size_t most) {
  for (Landed& landed : outcomes_.take_landed())
    begin_landing(std::move(landed));
  std::size_t copied = 0;
  for (; !landing_.empty(); landing_.pop_front()) {
    Landing& first = landing_.front();
    for (; first.next < first.waiting.size(); ++first.next) {
      if (copied > most) return;
      share(first.waiting[first.next], first.landed, copied);
    }
    outcomes_.given(*first.landed.batch);
  }
}

// Answers who waits as the other was answered, or lets it ask the card. Adds to `copied`.
void HotBlocks::share(const EntryRef& waiting, const Landed& landed, std::size_t& copied) {
  // The first of those who ask again leads, with memory of its own: so it ends.
  if (!landed.is_of_block) return ask_again(waiting);
  Batch& batch = *waiting.batch;
  const Entry& entry = batch.entries[waiting.index];
  const Entry& leader = landed.batch->entries[landed.index];
  const std::uint32_t length = leader.value_length;
  Counters& counters = outcomes_.counters();
  if (leader.status == wire::EntryStatus::miss) {
    counters.add(Counter::gets_shared);
    return outcomes_.miss(batch, waiting.index, landed.reason);
  }
  if (length > entry.length) {
    counters.add(Counter::gets_shared);
    return outcomes_.too_small(batch, waiting.index, length);
  }
  if (leader.status == wire::EntryStatus::too_small) return ask_again(waiting);
  // The leader's client can write to its memory at any time: only the copy counts.
  std::memcpy(entry.memory, leader.memory, length);
  copied += length;
  if (crc32c({entry.memory, length}) != leader.value_crc) return ask_again(waiting);
  counters.add(Counter::gets_shared);
  if (entry.is_lost()) return outcomes_.fail(batch, waiting.index, Why::memory_lost);
  outcomes_.hit(batch, waiting.index, length);
}

void HotBlocks::ask_again(const EntryRef& entry) {
  entry.batch->again.push_back(entry.index);
  again_.push_back(entry.batch);
}

void HotBlocks::begin_write(const Batch& batch, std::uint32_t index) noexcept {
  names_.generations.begin_write(names_.hasher(batch.entries[index].key));
}

void HotBlocks::end_write(const Batch& batch, std::uint32_t index) noexcept {
  names_.generations.end_write(names_.hasher(batch.entries[index].key));
}

}  // namespace akv::gateway
