// The blocks of one session's memory: which are leased, which are in use by commands.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "arena/extents.hpp"

namespace akv::arena {

inline constexpr std::uint32_t kPageBytes = 4096;

// Names one leased block; good until the block is freed.
using BlockId = std::uint32_t;
inline constexpr BlockId kNoBlock = ~BlockId{0};

// Leased bytes of all sessions, in whole pages.
using LeasedTotal = std::shared_ptr<std::atomic<std::uint64_t>>;

// Not thread-safe (but for `total`): belongs to the session's worker.
class Leases {
 public:
  // `bytes` is a multiple of the page size and at most 8 TiB. What is leased here counts in `total`.
  Leases(std::uint64_t bytes, LeasedTotal total);
  ~Leases();
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  // Leases a block for each length (1 .. 4 GiB - 1): all, or none and an empty result.
  [[nodiscard]] std::vector<std::uint64_t> lease(std::span<const std::uint32_t> lengths);

  // Frees the blocks that begin at `offsets`: all, or none when one of them is not leased or is named twice.
  // A pinned block can't be named any more from now on, and is free when its last pin goes.
  [[nodiscard]] bool free(std::span<const std::uint64_t> offsets);

  // The leased block that holds all of [offset, offset + length); length >= 1.
  [[nodiscard]] std::optional<BlockId> find(std::uint64_t offset, std::uint32_t length) const noexcept;

  // A pinned block keeps its memory, whatever is freed. Pins are counted.
  void pin(BlockId block) noexcept;
  void unpin(BlockId block);

  // A quarantined block was answered for, but a command may still touch it: nothing new may name it. Counted;
  // a quarantined block must be pinned.
  void quarantine(BlockId block) noexcept;
  void release_quarantine(BlockId block) noexcept;
  [[nodiscard]] bool quarantined(BlockId block) const noexcept;

  // Bytes of blocks that are leased, or freed but still pinned; in whole pages.
  [[nodiscard]] std::uint64_t leased_bytes() const noexcept;

 private:
  struct Block {
    std::uint32_t first_page{0};
    std::uint32_t pages{0};
    std::uint32_t length{0};
    std::uint32_t pins{0};
    std::uint32_t quarantines{0};
    bool freed{false};
  };

  [[nodiscard]] std::uint64_t take(std::uint32_t first_page, std::uint32_t length);
  [[nodiscard]] std::optional<BlockId> starting_at(std::uint64_t offset) const noexcept;
  [[nodiscard]] bool mark_freed(std::span<const std::uint64_t> offsets);
  void give_back(BlockId block);

  std::uint32_t pages_;
  LeasedTotal total_;
  Extents extents_;
  std::vector<BlockId> owner_;  // by page
  std::vector<Block> blocks_;
  std::vector<BlockId> unused_;  // entries of blocks_ to use again
};

}  // namespace akv::arena
