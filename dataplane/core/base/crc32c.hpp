// CRC-32C (Castagnoli), as NVMe/TCP digests and value envelopes use it; computed by ISA-L.
#pragma once

#include <isa-l/crc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace akv {

// Takes bytes piece by piece; value() may be asked at any time.
class Crc32c {
 public:
  void update(std::span<const std::byte> bytes) noexcept {
    constexpr std::size_t kPiece = std::size_t{1} << 30;  // ISA-L counts bytes in an int
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), kPiece));
      // ISA-L's parameter lacks a const; it only reads.
      auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(piece.data()));
      state_ = crc32_iscsi(data, static_cast<int>(piece.size()), state_);
      bytes = bytes.subspan(piece.size());
    }
  }
  [[nodiscard]] std::uint32_t value() const noexcept { return ~state_; }

 private:
  std::uint32_t state_{0xFFFFFFFFU};
};

[[nodiscard]] inline std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
  Crc32c crc;
  crc.update(bytes);
  return crc.value();
}

}  // namespace akv
