// The data digest behind H2CData, C2HData and in-capsule data (NVMe TCP Transport 1.0, 3.3.1.1).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/crc32c.hpp"

namespace akv::nvme {

// SPDK (26.09) pads the data with zeros to whole dwords for this; Linux and this code take the data
// alone. It matters only for lengths that are no multiple of 4: those of key-value commands.
[[nodiscard]] inline std::uint32_t padded_data_digest(Crc32c crc, std::size_t bytes) noexcept {
  constexpr std::array<std::byte, 3> kZeros{};
  crc.update(std::span(kZeros).first((4 - bytes % 4) % 4));
  return crc.value();
}

enum class DataDigest : std::uint8_t { wrong, plain, padded };

// `crc` went over the `bytes` bytes of data.
[[nodiscard]] inline DataDigest judge_data_digest(std::uint32_t received, const Crc32c& crc,
                                                  std::size_t bytes) noexcept {
  if (received == crc.value()) return DataDigest::plain;
  return received == padded_data_digest(crc, bytes) ? DataDigest::padded : DataDigest::wrong;
}

}  // namespace akv::nvme
