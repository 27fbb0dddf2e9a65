// A fuzzer's bytes, read piece by piece; at the end everything is zero and empty.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

namespace akv::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) noexcept
      : left_(reinterpret_cast<const std::byte*>(data), size) {}

  [[nodiscard]] bool empty() const noexcept { return left_.empty(); }
  template <std::unsigned_integral T>
  [[nodiscard]] T number() noexcept {
    T value{0};
    const auto part = bytes(sizeof value);
    if (!part.empty()) std::memcpy(&value, part.data(), part.size());
    return value;
  }
  // At most `size` bytes.
  [[nodiscard]] std::span<const std::byte> bytes(std::size_t size) noexcept {
    const auto part = left_.first(std::min(size, left_.size()));
    left_ = left_.subspan(part.size());
    return part;
  }
  [[nodiscard]] std::span<const std::byte> rest() noexcept { return bytes(left_.size()); }

 private:
  std::span<const std::byte> left_;
};

// What must hold for every input.
inline void check(bool holds, const char* what) noexcept {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace akv::fuzz
