// Which blocks a bounded memory keeps: S3-FIFO, which one pass over many blocks can't flush.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

namespace akv::arena {

// Three queues, first in, first out. New blocks enter `small`; those used again before they reach its end
// move to `main`, the others leave and are remembered by their hash alone. A block that comes back while it
// is remembered enters `main` at once, and leaves that when a whole round went by without use. Source: Yang
// et al., "FIFO queues are all you need for cache eviction", SOSP 2023. The share of `small` is larger here
// than there (10 %): dialogs come back after minutes, docs/dataplane.md has the measurement.
//
// Weights and the capacity are in one unit of the owner's choice. Not thread-safe; holds no blocks itself.
class S3Fifo {
 public:
  using Slot = std::uint32_t;  // the owner's number for a block; small numbers, used again

  explicit S3Fifo(std::uint64_t capacity) noexcept : capacity_(capacity) {}

  // The owner evicts until used() fits.
  void set_capacity(std::uint64_t capacity) noexcept { capacity_ = capacity; }
  [[nodiscard]] std::uint64_t used() const noexcept { return small_.weight + main_.weight; }
  [[nodiscard]] std::size_t size() const noexcept { return small_.count + main_.count; }

  // A block that is not in. `hash` stands for its name when it is remembered.
  void insert(Slot slot, std::uint64_t hash, std::uint32_t weight);
  // A block that is in was used.
  void hit(Slot slot) noexcept;
  // A block is not worth anything any more; it is not remembered.
  void erase(Slot slot) noexcept;
  // Takes out the block that is worth least; nothing when none is in.
  [[nodiscard]] std::optional<Slot> evict();

 private:
  static constexpr Slot kNone = ~Slot{0};
  static constexpr std::uint8_t kMostUses = 3;

  struct Node {
    std::uint64_t hash{0};
    std::uint32_t weight{0};
    Slot newer{kNone};
    Slot older{kNone};
    std::uint8_t uses{0};
    bool in_main{false};
  };
  struct Queue {
    Slot newest{kNone};
    Slot oldest{kNone};
    std::uint64_t weight{0};
    std::size_t count{0};
  };

  [[nodiscard]] Queue& queue_of(const Node& node) noexcept { return node.in_main ? main_ : small_; }
  void append(Slot slot) noexcept;
  void unlink(Slot slot) noexcept;
  [[nodiscard]] std::optional<Slot> evict_small();
  [[nodiscard]] Slot evict_main() noexcept;
  void remember(std::uint64_t hash);
  [[nodiscard]] bool remembered(std::uint64_t hash);

  std::uint64_t capacity_;
  std::vector<Node> nodes_;
  Queue small_;
  Queue main_;
  std::deque<std::uint64_t> past_;                         // hashes, oldest first
  std::unordered_map<std::uint64_t, std::uint64_t> when_;  // hash -> its last number in past_
  std::uint64_t first_number_{0};                          // of past_.front()
};

}  // namespace akv::arena
