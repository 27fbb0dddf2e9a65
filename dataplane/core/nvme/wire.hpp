// Copies of wire structures out of and into byte buffers. All structures of nvme/ have natural alignment, no
// padding of their own and little-endian fields, so that a memcpy is the whole codec.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

namespace akv::nvme {

static_assert(std::endian::native == std::endian::little, "NVMe structures are copied as they are");

template <typename T>
concept WireStruct = std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>;

// `from` must hold at least sizeof(T) bytes.
template <WireStruct T>
[[nodiscard]] inline T read_wire(std::span<const std::byte> from) noexcept {
  T value;
  std::memcpy(&value, from.data(), sizeof value);
  return value;
}

template <WireStruct T>
inline void write_wire(std::span<std::byte> to, const T& value) noexcept {
  std::memcpy(to.data(), &value, sizeof value);
}

template <WireStruct T>
[[nodiscard]] inline std::span<const std::byte, sizeof(T)> wire_bytes(const T& value) noexcept {
  return std::span<const std::byte, sizeof(T)>(reinterpret_cast<const std::byte*>(&value), sizeof(T));
}

}  // namespace akv::nvme
