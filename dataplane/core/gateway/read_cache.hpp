// Copies of hot blocks in what the sessions leave of the arena; one for each worker.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "arena/budget.hpp"
#include "arena/cache_memory.hpp"
#include "arena/leases.hpp"
#include "arena/s3_fifo.hpp"
#include "gateway/block_name.hpp"
#include "gateway/counters.hpp"

namespace akv::gateway {

// How much memory the caches of all workers may have, and how much they have.
struct CacheShare {
  std::uint64_t limit{0};  // bytes of one worker's cache, whole pages
  std::size_t workers{1};
  std::shared_ptr<arena::Budget> arena;  // its used bytes are the sessions', who go first
  std::shared_ptr<std::atomic<std::uint64_t>> held;
  std::shared_ptr<std::atomic<std::uint64_t>> borrowed;  // of those, bytes that clients read in place now
  bool lends{false};  // its memory is no part of the sessions', who could not get it back

  // Bytes that one worker's cache may have now.
  [[nodiscard]] std::uint64_t now() const noexcept {
    return lends ? limit : std::min(limit, (arena->limit() - arena->used()) / workers);
  }
};

// A block enters by copy into memory that no client can write, and its bytes never change while it is in, or
// pinned. Not thread-safe.
class ReadCache {
 public:
  using Slot = arena::S3Fifo::Slot;

  ReadCache(CacheShare share, Counters& counters);
  ~ReadCache();
  ReadCache(const ReadCache&) = delete;
  ReadCache& operator=(const ReadCache&) = delete;

  // The block of that name and generation; a copy of another generation leaves. Counts as no use.
  [[nodiscard]] std::optional<Slot> find(const BlockName& name, std::uint64_t generation);
  // The two halves of find(): the block of that name, whatever its generation, and whether it is of that one.
  [[nodiscard]] std::optional<Slot> find_any(const BlockName& name) const noexcept;
  // What find_any() looks at first, and then.
  void prefetch_bucket(const BlockName& name) const noexcept {
    __builtin_prefetch(&buckets_[bucket_of(name)]);
  }
  void prefetch_block(const BlockName& name) const noexcept {
    if (const Slot slot = buckets_[bucket_of(name)]; slot != kNone) __builtin_prefetch(&blocks_[slot]);
  }
  [[nodiscard]] bool is_present(Slot slot, std::uint64_t generation);
  [[nodiscard]] std::span<const std::byte> bytes(Slot slot) const noexcept;
  void used(Slot slot) noexcept { policy_.hit(slot); }

  // Room for a block that nobody finds before commit(), and that trim() does not take. Nothing where it is
  // too large to be worth it.
  [[nodiscard]] std::optional<Slot> reserve(std::uint32_t length);
  [[nodiscard]] std::span<std::byte> room(Slot slot) noexcept;
  // Takes the place of a copy of the same name.
  void commit(Slot slot, const BlockName& name, std::uint64_t generation);
  void cancel(Slot slot) { give_back(slot); }

  // Gives memory back that sessions have taken meanwhile.
  void trim();

  // Clients can map the memory. What follows is only for where they can.
  [[nodiscard]] bool lends() const noexcept { return memory_.fd() >= 0; }
  [[nodiscard]] int fd() const noexcept { return memory_.fd(); }
  [[nodiscard]] std::uint64_t size() const noexcept {
    return std::uint64_t{memory_.pages()} * arena::kPageBytes;
  }
  // A pinned block stays where it is until its last pin goes, also where nobody can find it any more. Pins
  // are counted. False: as much of the memory is pinned as may be.
  [[nodiscard]] bool pin(Slot slot) noexcept;
  void unpin(Slot slot);
  [[nodiscard]] std::uint64_t offset(Slot slot) const noexcept {
    return std::uint64_t{blocks_[slot].first_page} * arena::kPageBytes;
  }
  // The pinned block that begins at `offset`.
  [[nodiscard]] std::optional<Slot> pinned_at(std::uint64_t offset) const noexcept;

 private:
  static constexpr Slot kNone = ~Slot{0};

  struct Block {
    BlockName name;
    std::uint64_t generation{0};
    std::uint32_t first_page{0};
    std::uint32_t pages{0};
    std::uint32_t length{0};
    Slot next{kNone};  // with the same bucket
    std::uint32_t pins{0};
    bool known{false};  // can be found
  };

  [[nodiscard]] std::size_t bucket_of(const BlockName& name) const noexcept {
    return name.mixed() & (buckets_.size() - 1);
  }
  [[nodiscard]] Slot& bucket(const BlockName& name) noexcept { return buckets_[bucket_of(name)]; }
  [[nodiscard]] Slot take_slot();
  [[nodiscard]] std::optional<std::uint32_t> make_room(std::uint32_t pages);
  [[nodiscard]] bool evict_one();
  void unlink(Slot slot) noexcept;
  void leave(Slot slot);
  void drop(Slot slot);
  void give_back(Slot slot);
  void grow_buckets();

  CacheShare share_;
  Counters& counters_;
  arena::CacheMemory memory_;
  arena::S3Fifo policy_;
  std::vector<Block> blocks_;
  std::vector<Slot> unused_;
  std::vector<Slot> buckets_;  // a power of two
  std::size_t known_{0};       // blocks that can be found
  std::uint64_t used_pages_{0};
  std::vector<Slot> pinned_;  // by first page; empty where nothing is lent
  std::uint64_t pinned_pages_{0};
};

}  // namespace akv::gateway
