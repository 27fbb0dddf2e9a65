// Controller properties (NVMe Base 2.0, 3.1.3), read and written by Property Get and Set over Fabrics.
#pragma once

#include <cstdint>

namespace akv::nvme {

enum class Property : std::uint32_t { cap = 0x00, vs = 0x08, cc = 0x14, csts = 0x1C, nssr = 0x20 };

// 3.1.3.1 Controller Capabilities.
struct Cap {
  std::uint64_t raw{0};

  static constexpr std::uint64_t kContiguousQueues = std::uint64_t{1} << 16U;
  static constexpr std::uint64_t kCssNvm = std::uint64_t{1} << 37U;
  static constexpr std::uint64_t kCssIoCommandSets = std::uint64_t{1} << 43U;  // CSS bit 6
  static constexpr std::uint64_t kCssAdminOnly = std::uint64_t{1} << 44U;      // CSS bit 7

  [[nodiscard]] constexpr std::uint16_t mqes() const noexcept {
    return static_cast<std::uint16_t>(raw);
  }  // 0's based
  // Longest time of a change of CSTS.RDY, in units of 500 ms.
  [[nodiscard]] constexpr std::uint8_t timeout_500ms() const noexcept {
    return static_cast<std::uint8_t>(raw >> 24U);
  }
  [[nodiscard]] constexpr bool io_command_sets() const noexcept { return (raw & kCssIoCommandSets) != 0; }
  [[nodiscard]] constexpr bool nvm_command_set() const noexcept { return (raw & kCssNvm) != 0; }
  // Smallest memory page: MDTS counts in powers of two of it.
  [[nodiscard]] constexpr std::uint32_t min_page_bytes() const noexcept {
    return 1U << (12U + static_cast<unsigned>((raw >> 48U) & 0xFU));
  }
};

[[nodiscard]] constexpr Cap make_cap(std::uint16_t mqes, std::uint8_t timeout_500ms,
                                     std::uint64_t css_bits) noexcept {
  return {mqes | Cap::kContiguousQueues | (static_cast<std::uint64_t>(timeout_500ms) << 24U) | css_bits};
}

// 3.1.3.2 Version: 2.0.0.
inline constexpr std::uint32_t kVersion20 = 0x00020000;

// 3.1.3.5 Controller Configuration.
struct Cc {
  std::uint32_t raw{0};

  static constexpr std::uint32_t kEnable = 1U;
  static constexpr std::uint32_t kCssNvm = 0U << 4U;
  static constexpr std::uint32_t kCssAllCommandSets = 6U << 4U;  // 110b: all supported I/O command sets
  static constexpr std::uint32_t kShutdownNormal = 1U << 14U;
  static constexpr std::uint32_t kShutdownMask = 3U << 14U;
  static constexpr std::uint32_t kEntrySizes = (6U << 16U) | (4U << 20U);  // IOSQES 64 bytes, IOCQES 16 bytes

  [[nodiscard]] constexpr bool enabled() const noexcept { return (raw & kEnable) != 0; }
  [[nodiscard]] constexpr std::uint8_t css() const noexcept {
    return static_cast<std::uint8_t>((raw >> 4U) & 7U);
  }
  [[nodiscard]] constexpr bool shutdown_requested() const noexcept { return (raw & kShutdownMask) != 0; }
};

// 3.1.3.6 Controller Status.
struct Csts {
  std::uint32_t raw{0};

  static constexpr std::uint32_t kReady = 1U;
  static constexpr std::uint32_t kFatal = 1U << 1U;
  static constexpr std::uint32_t kShutdownComplete = 2U << 2U;
  static constexpr std::uint32_t kShutdownMask = 3U << 2U;

  [[nodiscard]] constexpr bool ready() const noexcept { return (raw & kReady) != 0; }
  [[nodiscard]] constexpr bool fatal() const noexcept { return (raw & kFatal) != 0; }
  [[nodiscard]] constexpr bool shutdown_complete() const noexcept {
    return (raw & kShutdownMask) == kShutdownComplete;
  }
};

}  // namespace akv::nvme
