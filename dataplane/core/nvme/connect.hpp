// Fabrics commands (NVMe Base 2.0, 6): Connect, Property Get and Set. They use the fields of Sqe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "nvme/command.hpp"
#include "nvme/registers.hpp"

namespace akv::nvme {

using Uuid = std::array<std::uint8_t, 16>;

inline constexpr std::size_t kNqnMaxBytes = 223;  // Base 2.0, 4.5
inline constexpr std::uint16_t kDynamicController = 0xFFFF;

// Data of Connect (6.3, "Connect Command - Data").
struct ConnectData {
  Uuid hostid{};
  std::uint16_t cntlid{kDynamicController};
  std::uint8_t reserved1[238]{};
  char subnqn[256]{};
  char hostnqn[256]{};
  std::uint8_t reserved2[256]{};
};
static_assert(sizeof(ConnectData) == 1024);
static_assert(offsetof(ConnectData, cntlid) == 16 && offsetof(ConnectData, subnqn) == 256);
static_assert(offsetof(ConnectData, hostnqn) == 512);

// CATTR bit 2: the host does not use SQHD; the controller need not maintain it and answers FFFFh in Connect.
inline constexpr std::uint8_t kConnectDisableSqFlow = 0x04;
inline constexpr std::uint16_t kSqhdDisabled = 0xFFFF;

struct ConnectCommand {
  std::uint16_t recfmt{0};
  std::uint16_t qid{0};
  std::uint16_t sqsize{0};  // 0's based
  std::uint8_t cattr{0};
  std::uint32_t kato_ms{0};
};

// The data goes in the capsule, as NVMe/TCP demands of Connect (SGL type 0x01, 1,024 bytes).
[[nodiscard]] Sqe make_connect(const ConnectCommand& command);
[[nodiscard]] ConnectCommand parse_connect(const Sqe& sqe);

// DW0 of a successful Connect: controller id and whether authentication is required (ATR or ASCR).
struct ConnectResult {
  std::uint16_t cntlid{0};
  bool authentication{false};
};
[[nodiscard]] ConnectResult parse_connect_result(std::uint32_t dw0);

// DW0 of "Connect Invalid Parameters": offset of the bad field, in the data (IATTR 1) or the command (0).
[[nodiscard]] constexpr std::uint32_t connect_bad_data(std::size_t offset) noexcept {
  return 0x10000U | static_cast<std::uint32_t>(offset);
}
[[nodiscard]] constexpr std::uint32_t connect_bad_command(std::size_t offset) noexcept {
  return static_cast<std::uint32_t>(offset);
}
inline constexpr std::size_t kConnectQidOffset = 42;     // in the SQE
inline constexpr std::size_t kConnectSqsizeOffset = 44;  // in the SQE

// False when `nqn` is longer than a NQN may be. `field` is filled with zeros behind it.
[[nodiscard]] bool set_nqn(char (&field)[256], std::string_view nqn);
// Empty when the field has no terminating zero or is longer than a NQN may be.
[[nodiscard]] std::string_view get_nqn(const char (&field)[256]);

[[nodiscard]] Sqe make_property_get(Property property);  // size follows from the property
[[nodiscard]] Sqe make_property_set(Property property, std::uint64_t value);

struct PropertyCommand {
  std::uint32_t offset{0};
  std::uint64_t value{0};  // Property Set only
  bool eight_bytes{false};
};
[[nodiscard]] PropertyCommand parse_property(const Sqe& sqe);

}  // namespace akv::nvme
