// Bytes of a value or of a command's data, shared between the store and whatever still sends them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace akv::softcard {

using SharedBytes = std::shared_ptr<std::byte[]>;

// Uninitialised: the caller fills it. Throws std::bad_alloc.
[[nodiscard]] inline SharedBytes allocate_bytes(std::size_t bytes) {
  return std::make_shared_for_overwrite<std::byte[]>(bytes);
}

struct Value {
  std::shared_ptr<const std::byte[]> bytes;
  std::uint32_t size{0};
  std::size_t memory{0};  // that `bytes` keep alive; never less than `size` where it is set

  [[nodiscard]] std::size_t held() const noexcept { return std::max<std::size_t>(size, memory); }
  [[nodiscard]] std::span<const std::byte> view() const noexcept { return {bytes.get(), size}; }
};

}  // namespace akv::softcard
