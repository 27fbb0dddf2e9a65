// Submission and completion queue entries, SGL descriptors and opcodes (NVMe Base 2.0, 3.3.3 and 4.1).
#pragma once

#include <cstddef>
#include <cstdint>

#include "nvme/status.hpp"
#include "nvme/wire.hpp"

namespace akv::nvme {

// SGL descriptor (Base 2.0, 4.1.2); identifier = type in bits 7:4, subtype in bits 3:0.
struct SglDescriptor {
  std::uint64_t address{0};
  std::uint32_t length{0};
  std::uint8_t reserved[3]{};
  std::uint8_t identifier{0};
};
static_assert(sizeof(SglDescriptor) == 16 && offsetof(SglDescriptor, identifier) == 15);

inline constexpr std::uint8_t kSglInCapsule =
    0x01;  // data block, offset subtype: address = offset into the capsule's data
inline constexpr std::uint8_t kSglTransport = 0x5A;  // transport data block, transport specific subtype

[[nodiscard]] constexpr SglDescriptor in_capsule_sgl(std::uint32_t length) noexcept {
  return {.length = length, .identifier = kSglInCapsule};
}
[[nodiscard]] constexpr SglDescriptor transport_sgl(std::uint32_t length) noexcept {
  return {.length = length, .identifier = kSglTransport};
}

// Submission queue entry (Base 2.0, 3.3.3.1). NVMe over Fabrics demands PSDT = 01b (SGL) in `flags`.
inline constexpr std::uint8_t kFlagSgl = 0x40;
inline constexpr std::uint8_t kFlagPsdtMask = 0xC0;

struct Sqe {
  std::uint8_t opcode{0};
  std::uint8_t flags{kFlagSgl};
  std::uint16_t cid{0};
  std::uint32_t nsid{0};  // in Fabrics commands bits 7:0 are FCTYPE
  std::uint32_t cdw2{0};
  std::uint32_t cdw3{0};
  std::uint64_t mptr{0};
  SglDescriptor sgl{};
  std::uint32_t cdw10{0};
  std::uint32_t cdw11{0};
  std::uint32_t cdw12{0};
  std::uint32_t cdw13{0};
  std::uint32_t cdw14{0};
  std::uint32_t cdw15{0};
};
static_assert(sizeof(Sqe) == 64);
static_assert(offsetof(Sqe, nsid) == 4 && offsetof(Sqe, cdw2) == 8 && offsetof(Sqe, mptr) == 16);
static_assert(offsetof(Sqe, sgl) == 24 && offsetof(Sqe, cdw10) == 40 && offsetof(Sqe, cdw15) == 60);

// Completion queue entry (Base 2.0, 3.3.3.2). `status_phase` is the status field shifted by the phase bit,
// which Fabrics leaves 0.
struct Cqe {
  std::uint32_t dw0{0};
  std::uint32_t dw1{0};
  std::uint16_t sqhd{0};
  std::uint16_t sqid{0};
  std::uint16_t cid{0};
  std::uint16_t status_phase{0};

  [[nodiscard]] constexpr Status status() const noexcept { return static_cast<Status>(status_phase >> 1U); }
  constexpr void set_status(Status status) noexcept {
    status_phase = static_cast<std::uint16_t>(static_cast<unsigned>(status) << 1U);
  }
  // Property Get answers 64 bits in DW0 and DW1.
  [[nodiscard]] constexpr std::uint64_t result64() const noexcept {
    return (static_cast<std::uint64_t>(dw1) << 32U) | dw0;
  }
  constexpr void set_result64(std::uint64_t value) noexcept {
    dw0 = static_cast<std::uint32_t>(value);
    dw1 = static_cast<std::uint32_t>(value >> 32U);
  }
};
static_assert(sizeof(Cqe) == 16 && offsetof(Cqe, sqhd) == 8 && offsetof(Cqe, status_phase) == 14);

// Admin command set (Base 2.0, 5). Values of opcodes share their lowest two bits with the data direction.
enum class AdminOpcode : std::uint8_t {
  get_log_page = 0x02,
  identify = 0x06,
  abort = 0x08,
  set_features = 0x09,
  get_features = 0x0A,
  async_event_request = 0x0C,
  keep_alive = 0x18,
};

inline constexpr std::uint8_t kFabricsOpcode = 0x7F;  // Base 2.0, 6: any queue

enum class FabricsType : std::uint8_t {
  property_set = 0x00,
  connect = 0x01,
  property_get = 0x04,
  disconnect = 0x08
};

// Key Value Command Set 1.0, 3.2.
enum class KvOpcode : std::uint8_t {
  store = 0x01,
  retrieve = 0x02,
  list = 0x06,
  remove = 0x10,
  exist = 0x14
};

// I/O command sets, CSI (Base 2.0, 5.17.2.5 figure "I/O Command Set identifiers").
inline constexpr std::uint8_t kCsiNvm = 0x00;
inline constexpr std::uint8_t kCsiKeyValue = 0x01;

inline constexpr std::uint32_t kBroadcastNsid = 0xFFFFFFFFU;

// Feature identifiers (Base 2.0, 5.27.1).
enum class Feature : std::uint8_t {
  number_of_queues = 0x07,
  async_event_configuration = 0x0B,
  keep_alive_timer = 0x0F,
  io_command_set_profile = 0x19,
};

// Builders of admin commands; the caller sets cid. Lengths in bytes.
[[nodiscard]] Sqe make_identify(std::uint8_t cns, std::uint32_t nsid, std::uint8_t csi = 0);
// `queues` is the count of I/O queues wanted, 1 to 65,535 (the command carries it 0's based).
[[nodiscard]] Sqe make_set_queues(std::uint16_t queues);
[[nodiscard]] Sqe make_keep_alive();
[[nodiscard]] Sqe make_async_event_request();
// `events`: bits as in Identify Controller's OAES (Feature 0Bh). What is not asked for is not told.
[[nodiscard]] Sqe make_set_async_events(std::uint32_t events);
// The first `bytes`, a multiple of 4, of a log page; reading it lets events of its kind be told again.
[[nodiscard]] Sqe make_get_log_page(std::uint8_t page, std::uint32_t bytes);
[[nodiscard]] Sqe make_abort(std::uint16_t sqid, std::uint16_t cid);

// DW0 of a completed Asynchronous Event Request (Base 2.0, 5.2).
struct AsyncEvent {
  std::uint8_t type{0};
  std::uint8_t info{0};
  std::uint8_t log_page{0};  // tells more, and is to be read

  [[nodiscard]] constexpr bool namespace_changed() const noexcept { return type == 2 && info == 0; }
};
[[nodiscard]] constexpr AsyncEvent parse_async_event(std::uint32_t dw0) noexcept {
  return {.type = static_cast<std::uint8_t>(dw0 & 7U),
          .info = static_cast<std::uint8_t>(dw0 >> 8U),
          .log_page = static_cast<std::uint8_t>(dw0 >> 16U)};
}

// The smaller of the submission and completion queues granted in DW0 of Set Features (Number of Queues).
[[nodiscard]] std::uint16_t granted_queues(std::uint32_t dw0);

}  // namespace akv::nvme
