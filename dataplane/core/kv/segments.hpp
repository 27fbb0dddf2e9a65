// How a value that is larger than the card takes is cut into segments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace akv::kv {

inline constexpr std::uint16_t kMaxSegments = 1024;
inline constexpr std::uint32_t kSegmentAlign = 4096;

// A value of `total` bytes in `count` segments of equal, page-aligned length; the last one has the rest.
// Writer and reader compute it alike from the two numbers.
class Split {
 public:
  // `total` and `count` must be at least 1.
  Split(std::uint32_t total, std::uint16_t count) noexcept;

  [[nodiscard]] std::uint16_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint32_t total() const noexcept { return total_; }
  // False when so many segments can't have been cut from so few bytes (a damaged or foreign envelope).
  [[nodiscard]] bool sound() const noexcept;
  [[nodiscard]] std::size_t offset(std::uint16_t index) const noexcept;
  [[nodiscard]] std::uint32_t length(std::uint16_t index) const noexcept;

 private:
  std::uint32_t total_;
  std::uint16_t count_;
  std::uint32_t each_;
};

// The fewest segments for a value of `total` bytes (>= 1) on a card that takes `max_value_bytes` a value,
// envelope included; nothing when that can't be done.
[[nodiscard]] std::optional<Split> split_for(std::uint32_t total, std::uint32_t max_value_bytes) noexcept;

}  // namespace akv::kv
