#include "gateway/read_cache.hpp"

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/events.hpp"

namespace akv::gateway {
namespace {

using arena::kPageBytes;

constexpr std::uint64_t kLargestShare = 8;  // a block takes at most one part in so many
constexpr int kMostEvictions = 256;         // for one block, so that an event ends
constexpr std::size_t kFewestBuckets = 64;
constexpr std::uint64_t kPinnedShare = 2;  // of the memory at most one part in so many is pinned

// Without the seal a client could change what others are given: then nothing is lent.
arena::CacheMemory make_memory(const CacheShare& share) {
  using Kind = arena::CacheMemory::Kind;
  if (!share.lends) return arena::CacheMemory(share.limit);
  try {
    return arena::CacheMemory(share.limit, Kind::lent);
  } catch (const std::system_error& failure) {
    log_event(Level::warning, "cached_blocks_not_lent", {{"reason", std::string_view(failure.what())}});
    return arena::CacheMemory(share.limit);
  }
}

}  // namespace

ReadCache::ReadCache(CacheShare share, Counters& counters)
    : share_(std::move(share)),
      counters_(counters),
      memory_(make_memory(share_)),
      policy_(memory_.pages()),
      buckets_(kFewestBuckets, kNone),
      pinned_(lends() ? memory_.pages() : 0, kNone) {}

ReadCache::~ReadCache() {
  share_.held->fetch_sub(used_pages_ * kPageBytes, std::memory_order_relaxed);
  share_.borrowed->fetch_sub(pinned_pages_ * kPageBytes, std::memory_order_relaxed);
}

std::optional<ReadCache::Slot> ReadCache::find_any(const BlockName& name) const noexcept {
  for (Slot slot = buckets_[bucket_of(name)]; slot != kNone; slot = blocks_[slot].next) {
    if (blocks_[slot].name == name) return slot;
  }
  return std::nullopt;
}

bool ReadCache::is_present(Slot slot, std::uint64_t generation) {
  if (blocks_[slot].generation == generation) return true;
  counters_.add(Counter::cache_stale);
  drop(slot);
  return false;
}

std::optional<ReadCache::Slot> ReadCache::find(const BlockName& name, std::uint64_t generation) {
  const auto slot = find_any(name);
  return slot && is_present(*slot, generation) ? slot : std::nullopt;
}

std::span<const std::byte> ReadCache::bytes(Slot slot) const noexcept {
  return memory_.bytes(blocks_[slot].first_page, blocks_[slot].length);
}

std::span<std::byte> ReadCache::room(Slot slot) noexcept {
  return memory_.bytes(blocks_[slot].first_page, blocks_[slot].length);
}

std::optional<ReadCache::Slot> ReadCache::reserve(std::uint32_t length) {
  const auto pages = static_cast<std::uint32_t>((std::uint64_t{length} + kPageBytes - 1) / kPageBytes);
  const std::uint64_t most = share_.now() / kPageBytes;
  if (pages > most / kLargestShare) return std::nullopt;
  policy_.set_capacity(most);
  const auto first = make_room(pages);
  if (!first) return std::nullopt;
  const Slot slot = take_slot();
  blocks_[slot] = {};
  blocks_[slot].first_page = *first;
  blocks_[slot].pages = pages;
  blocks_[slot].length = length;
  used_pages_ += pages;
  share_.held->fetch_add(std::uint64_t{pages} * kPageBytes, std::memory_order_relaxed);
  return slot;
}

std::optional<std::uint32_t> ReadCache::make_room(std::uint32_t pages) {
  const std::uint64_t most = share_.now() / kPageBytes;
  for (int evictions = 0; evictions < kMostEvictions; ++evictions) {
    if (used_pages_ + pages <= most) {
      if (const auto first = memory_.take(pages)) return first;
    }
    if (!evict_one()) return std::nullopt;
  }
  return std::nullopt;
}

bool ReadCache::evict_one() {
  const auto slot = policy_.evict();
  if (!slot) return false;
  counters_.add(Counter::cache_evictions);
  leave(*slot);
  return true;
}

ReadCache::Slot ReadCache::take_slot() {
  if (unused_.empty()) {
    blocks_.emplace_back();
    return static_cast<Slot>(blocks_.size() - 1);
  }
  const Slot slot = unused_.back();
  unused_.pop_back();
  return slot;
}

void ReadCache::commit(Slot slot, const BlockName& name, std::uint64_t generation) {
  if (const auto before = find_any(name)) drop(*before);
  if (known_ == buckets_.size()) grow_buckets();
  Block& block = blocks_[slot];
  block.name = name;
  block.generation = generation;
  block.next = std::exchange(bucket(name), slot);
  block.known = true;
  ++known_;
  policy_.insert(slot, name.mixed(), block.pages);
  counters_.add(Counter::cache_fills);
  // Sessions may have taken memory since the room was reserved.
  if (used_pages_ * kPageBytes > share_.now()) trim();
}

void ReadCache::drop(Slot slot) {
  policy_.erase(slot);
  leave(slot);
}

// Nobody finds the block any more; who reads it in place goes on.
void ReadCache::leave(Slot slot) {
  unlink(slot);
  if (blocks_[slot].pins == 0) give_back(slot);
}

void ReadCache::unlink(Slot slot) noexcept {
  Slot* link = &bucket(blocks_[slot].name);
  while (*link != slot)
    link = &blocks_[*link].next;
  *link = blocks_[slot].next;
  blocks_[slot].known = false;
  --known_;
}

bool ReadCache::pin(Slot slot) noexcept {
  Block& block = blocks_[slot];
  if (block.pins != 0) {
    ++block.pins;
    return true;
  }
  if (pinned_pages_ + block.pages > memory_.pages() / kPinnedShare) return false;
  block.pins = 1;
  pinned_[block.first_page] = slot;
  pinned_pages_ += block.pages;
  share_.borrowed->fetch_add(std::uint64_t{block.pages} * kPageBytes, std::memory_order_relaxed);
  return true;
}

void ReadCache::unpin(Slot slot) {
  Block& block = blocks_[slot];
  if (--block.pins != 0) return;
  pinned_[block.first_page] = kNone;
  pinned_pages_ -= block.pages;
  share_.borrowed->fetch_sub(std::uint64_t{block.pages} * kPageBytes, std::memory_order_relaxed);
  if (!block.known) give_back(slot);
}

std::optional<ReadCache::Slot> ReadCache::pinned_at(std::uint64_t offset) const noexcept {
  const std::uint64_t page = offset / kPageBytes;
  if (offset % kPageBytes != 0 || page >= pinned_.size() || pinned_[page] == kNone) return std::nullopt;
  return pinned_[page];
}

void ReadCache::give_back(Slot slot) {
  const Block& block = blocks_[slot];
  // Free pages stay warm for the next block, but not those that sessions may want.
  if (share_.now() < share_.limit) memory_.release(block.first_page, block.pages);
  memory_.give_back(block.first_page, block.pages);
  used_pages_ -= block.pages;
  share_.held->fetch_sub(std::uint64_t{block.pages} * kPageBytes, std::memory_order_relaxed);
  unused_.push_back(slot);
}

void ReadCache::grow_buckets() {
  const auto old = std::exchange(buckets_, std::vector<Slot>(2 * buckets_.size(), kNone));
  for (Slot head : old) {
    while (head != kNone) {
      const Slot next = blocks_[head].next;
      blocks_[head].next = std::exchange(bucket(blocks_[head].name), head);
      head = next;
    }
  }
}

void ReadCache::trim() {
  const std::uint64_t most = share_.now() / kPageBytes;
  policy_.set_capacity(most);
  if (used_pages_ <= most) return;
  while (used_pages_ > most && evict_one()) {
  }
  memory_.release_free();
}

}  // namespace akv::gateway
