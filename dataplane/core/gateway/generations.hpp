// Tells copies of a value from what was written since, across workers and without locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace akv::gateway {

// A counter for each of many groups of names. A copy that was read from a card is the present value as long
// as its group's generation is the one from before the reading: every command that may change a value counts
// twice, when it is handed to the card and when the card can't act on it any more (which for a late one is
// long after the reply). Between the two nothing of the group may be copied or served from a copy.
class Generations {
 public:
  Generations() : groups_(new std::atomic<std::uint64_t>[kGroups]()) {}

  // Nothing while something of the group is being written.
  [[nodiscard]] std::optional<std::uint64_t> stable(std::uint64_t hash) const noexcept {
    const std::uint64_t state = group(hash).load(std::memory_order_acquire);
    if (state >> kGenerationBits != 0) return std::nullopt;
    return state;
  }
  void prefetch(std::uint64_t hash) const noexcept { __builtin_prefetch(&group(hash)); }
  void begin_write(std::uint64_t hash) noexcept {
    group(hash).fetch_add(kOneWriter, std::memory_order_acq_rel);
  }
  void end_write(std::uint64_t hash) noexcept {
    group(hash).fetch_sub(kOneWriter - 1, std::memory_order_acq_rel);
  }

 private:
  // With this many, few names share a group with one that is written. A generation would have to count up for
  // half a year at a million writes a second before it ran into the writers' bits.
  static constexpr std::size_t kGroups = std::size_t{1} << 19U;
  static constexpr unsigned kGenerationBits = 44;
  static constexpr std::uint64_t kOneWriter = std::uint64_t{1} << kGenerationBits;

  [[nodiscard]] std::atomic<std::uint64_t>& group(std::uint64_t hash) const noexcept {
    return groups_[hash & (kGroups - 1)];
  }

  std::unique_ptr<std::atomic<std::uint64_t>[]> groups_;
};

}  // namespace akv::gateway
