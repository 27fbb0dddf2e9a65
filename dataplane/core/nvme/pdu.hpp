// NVMe/TCP PDUs (NVMe TCP Transport 1.0, 3.6) and the check of every header that comes from the other side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "nvme/command.hpp"
#include "nvme/wire.hpp"

namespace akv::nvme {

enum class PduType : std::uint8_t {
  ic_req = 0x00,
  ic_resp = 0x01,
  h2c_term_req = 0x02,
  c2h_term_req = 0x03,
  capsule_cmd = 0x04,
  capsule_resp = 0x05,
  h2c_data = 0x06,
  c2h_data = 0x07,
  r2t = 0x09,
};

// Flags of the common header.
inline constexpr std::uint8_t kPduHdgst = 0x01;        // a header digest follows the header
inline constexpr std::uint8_t kPduDdgst = 0x02;        // a data digest follows the data
inline constexpr std::uint8_t kPduLast = 0x04;         // H2CData, C2HData: last PDU of the transfer
inline constexpr std::uint8_t kPduDataSuccess = 0x08;  // C2HData: stands for a successful completion as well

inline constexpr std::size_t kDigestBytes = 4;
inline constexpr std::size_t kIcPduBytes = 128;
inline constexpr std::size_t kTermDataMax =
    128;                                     // bytes of the offending header behind a termination request
inline constexpr std::uint8_t kPdaMax = 31;  // HPDA and CPDA: 0's based count of dwords
inline constexpr std::uint32_t kMinMaxH2cData = 4096;

// 3.6.1 common header.
struct CommonHeader {
  std::uint8_t type{0};
  std::uint8_t flags{0};
  std::uint8_t hlen{0};
  std::uint8_t pdo{0};  // data offset from the PDU's first byte; 0 without data
  std::uint32_t plen{0};
};
static_assert(sizeof(CommonHeader) == 8);

// DGST of ICReq and ICResp.
inline constexpr std::uint8_t kDigestHeader = 0x01;
inline constexpr std::uint8_t kDigestData = 0x02;

// 3.6.2.2
struct IcReq {
  CommonHeader common{.type = 0x00, .flags = 0, .hlen = kIcPduBytes, .pdo = 0, .plen = kIcPduBytes};
  std::uint16_t pfv{0};
  std::uint8_t hpda{0};
  std::uint8_t dgst{0};
  std::uint32_t maxr2t{0};  // R2Ts outstanding for one command, 0's based
  std::uint8_t reserved[112]{};
};
static_assert(sizeof(IcReq) == kIcPduBytes);

// 3.6.2.3
struct IcResp {
  CommonHeader common{.type = 0x01, .flags = 0, .hlen = kIcPduBytes, .pdo = 0, .plen = kIcPduBytes};
  std::uint16_t pfv{0};
  std::uint8_t cpda{0};
  std::uint8_t dgst{0};
  std::uint32_t maxh2cdata{0};  // bytes of data of one H2CData PDU, a multiple of 4, at least 4,096
  std::uint8_t reserved[112]{};
};
static_assert(sizeof(IcResp) == kIcPduBytes);

// 3.6.2.4 and 3.6.2.5: fatal error status (FES) and, for some, where it is (FEI; split for its odd place).
enum class FatalStatus : std::uint16_t {
  invalid_header_field = 0x01,  // FEI: offset of the field
  sequence_error = 0x02,
  header_digest = 0x03,  // FEI: the digest received
  data_out_of_range = 0x04,
  data_limit_exceeded = 0x05,    // H2CTermReq: R2T limit exceeded
  unsupported_parameter = 0x06,  // FEI: offset of the parameter
};
[[nodiscard]] std::string_view to_string(FatalStatus status) noexcept;

struct TermReq {
  CommonHeader common{.type = 0x03, .flags = 0, .hlen = 24, .pdo = 0, .plen = 24};
  std::uint16_t fes{0};
  std::uint16_t fei_low{0};
  std::uint16_t fei_high{0};
  std::uint8_t reserved[10]{};

  [[nodiscard]] constexpr std::uint32_t fei() const noexcept {
    return fei_low | (static_cast<std::uint32_t>(fei_high) << 16U);
  }
};
static_assert(sizeof(TermReq) == 24 && offsetof(TermReq, fei_low) == 10);

// 3.6.2.6
struct CapsuleCmd {
  CommonHeader common{.type = 0x04, .flags = 0, .hlen = 72, .pdo = 0, .plen = 72};
  Sqe sqe{};
};
static_assert(sizeof(CapsuleCmd) == 72);

// 3.6.2.7
struct CapsuleResp {
  CommonHeader common{.type = 0x05, .flags = 0, .hlen = 24, .pdo = 0, .plen = 24};
  Cqe cqe{};
};
static_assert(sizeof(CapsuleResp) == 24);

// 3.6.2.8 H2CData (ttag of the R2T) and 3.6.2.9 C2HData (ttag reserved).
struct DataPdu {
  CommonHeader common{.type = 0x06, .flags = 0, .hlen = 24, .pdo = 0, .plen = 24};
  std::uint16_t cccid{0};
  std::uint16_t ttag{0};
  std::uint32_t datao{0};
  std::uint32_t datal{0};
  std::uint8_t reserved[4]{};
};
static_assert(sizeof(DataPdu) == 24 && offsetof(DataPdu, datao) == 12);

// 3.6.2.10
struct R2t {
  CommonHeader common{.type = 0x09, .flags = 0, .hlen = 24, .pdo = 0, .plen = 24};
  std::uint16_t cccid{0};
  std::uint16_t ttag{0};
  std::uint32_t r2to{0};
  std::uint32_t r2tl{0};
  std::uint8_t reserved[4]{};
};
static_assert(sizeof(R2t) == 24);

// How this connection frames PDUs in one direction: `pda` is CPDA where the controller receives, HPDA where
// the host does.
struct Framing {
  bool hdgst{false};
  bool ddgst{false};
  std::uint8_t pda{0};

  [[nodiscard]] constexpr std::uint32_t alignment() const noexcept { return (pda + 1U) * 4U; }
};

enum class Role : std::uint8_t { controller, host };

// What the receiver allows. Data lengths beyond these bounds are a fatal error before any byte is read.
struct ReceiveRules {
  Role role{Role::controller};
  Framing framing{};
  std::uint32_t max_capsule_data{0};  // CapsuleCmd: bytes of in-capsule data
  std::uint32_t max_data{0};          // H2CData (MAXH2CDATA) or C2HData (longest transfer asked for)
};

struct FatalError {
  FatalStatus status{FatalStatus::invalid_header_field};
  std::uint32_t info{0};

  friend bool operator==(const FatalError&, const FatalError&) = default;
};

// A header that passed: where things lie in the PDU, in bytes from its start.
struct PduHeader {
  PduType type{PduType::ic_req};
  std::uint8_t flags{0};
  std::uint8_t hlen{0};
  std::uint32_t prefix{0};  // bytes before the data: header, its digest and padding
  std::uint32_t data{0};    // bytes of data
  std::uint32_t plen{0};
  bool has_ddgst{false};

  [[nodiscard]] constexpr bool flag(std::uint8_t bit) const noexcept { return (flags & bit) != 0; }
};

struct ParseResult {
  enum class Kind : std::uint8_t { need_more, header, error };
  Kind kind{Kind::need_more};
  std::size_t need{0};  // need_more: bytes of this PDU wanted before the next try (more are welcome)
  PduHeader header{};
  FatalError error{};
};

// Looks at the first bytes of a PDU. Needs the 8 bytes of the common header first, then everything up to the
// data, and gives that header once with its digest verified. Never needs more than 255 bytes.
[[nodiscard]] ParseResult parse_pdu(std::span<const std::byte> bytes, const ReceiveRules& rules);

// Prepares the common header of a PDU with `data` bytes and gives the bytes that come before the data. With a
// header digest the caller appends header_digest() at hlen, and zeros up to the returned offset.
[[nodiscard]] std::uint32_t frame_pdu(CommonHeader& header, std::uint32_t data,
                                      const Framing& framing) noexcept;

// Encodes header, digest and padding; `to` needs 255 bytes at most. Gives the bytes written.
template <WireStruct T>
[[nodiscard]] std::size_t encode_pdu(std::span<std::byte> to, T pdu, std::uint32_t data,
                                     const Framing& framing);

[[nodiscard]] std::uint32_t header_digest(std::span<const std::byte> header) noexcept;
[[nodiscard]] std::size_t finish_header(std::span<std::byte> to, std::size_t hlen, std::uint32_t prefix,
                                        bool hdgst) noexcept;

template <WireStruct T>
std::size_t encode_pdu(std::span<std::byte> to, T pdu, std::uint32_t data, const Framing& framing) {
  const auto prefix = frame_pdu(pdu.common, data, framing);
  write_wire(to, pdu);
  return finish_header(to, sizeof(T), prefix, (pdu.common.flags & kPduHdgst) != 0);
}

}  // namespace akv::nvme
