// Little-endian loads and stores on raw bytes, without alignment demands. Bounds are the caller's.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace akv {

static_assert(std::endian::native == std::endian::little, "wire formats are read in place");

template <std::unsigned_integral T>
[[nodiscard]] inline T load_le(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <std::unsigned_integral T>
inline void store_le(std::byte* to, T value) noexcept {
  std::memcpy(to, &value, sizeof value);
}

[[nodiscard]] inline std::span<const std::byte> as_byte_span(std::string_view text) noexcept {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace akv
