#include "kv/segments.hpp"

#include <algorithm>

#include "kv/envelope.hpp"

namespace akv::kv {
namespace {

std::uint32_t segment_length(std::uint32_t total, std::uint16_t count) noexcept {
  if (count == 1) return total;
  const std::uint64_t even = (std::uint64_t{total} + count - 1) / count;
  const std::uint64_t aligned = (even + kSegmentAlign - 1) / kSegmentAlign * kSegmentAlign;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(aligned, total));
}

}  // namespace

Split::Split(std::uint32_t total, std::uint16_t count) noexcept
    : total_(total), count_(count), each_(segment_length(total, count)) {}

bool Split::sound() const noexcept {
  return std::uint64_t{each_} * (count_ - 1U) < total_;
}

std::size_t Split::offset(std::uint16_t index) const noexcept {
  return std::size_t{each_} * index;
}

std::uint32_t Split::length(std::uint16_t index) const noexcept {
  const std::size_t start = offset(index);
  return start >= total_ ? 0 : static_cast<std::uint32_t>(std::min<std::size_t>(each_, total_ - start));
}

std::optional<Split> split_for(std::uint32_t total, std::uint32_t max_value_bytes) noexcept {
  if (max_value_bytes <= kEnvelopeBytes) return std::nullopt;
  const auto room = static_cast<std::uint32_t>(max_value_bytes - kEnvelopeBytes);
  if (total <= room) return Split(total, 1);
  const std::uint32_t aligned = room / kSegmentAlign * kSegmentAlign;
  if (aligned == 0) return std::nullopt;
  const std::uint64_t count = (std::uint64_t{total} + aligned - 1) / aligned;
  if (count > kMaxSegments) return std::nullopt;
  return Split(total, static_cast<std::uint16_t>(count));
}

}  // namespace akv::kv
