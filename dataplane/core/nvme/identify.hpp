// Identify data structures (NVMe Base 2.0, 5.17.2; KV Command Set 1.0, 4.1.5), each 4,096 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "nvme/connect.hpp"
#include "nvme/wire.hpp"

namespace akv::nvme {

inline constexpr std::uint32_t kIdentifyBytes = 4096;

// Controller or Namespace Structure (CDW10 bits 7:0).
enum class Cns : std::uint8_t {
  namespace_nvm = 0x00,
  controller = 0x01,
  active_namespaces = 0x02,
  namespace_descriptors = 0x03,
  namespace_command_set = 0x05,          // of the CSI in CDW11 bits 31:24
  controller_command_set = 0x06,         // likewise
  active_namespaces_command_set = 0x07,  // likewise
  namespace_independent = 0x08,
  command_set_combinations = 0x1C,
};

// CNS 01h (5.17.2.1). Reserved spans that neither side uses keep their place only.
struct IdentifyController {
  std::uint16_t vid{0};
  std::uint16_t ssvid{0};
  char sn[20]{};  // ASCII, spaces behind
  char mn[40]{};
  char fr[8]{};
  std::uint8_t rab{0};
  std::uint8_t ieee[3]{};
  std::uint8_t cmic{0};  // bit 1: the subsystem may have two or more controllers
  std::uint8_t mdts{0};  // longest transfer = 2^mdts pages of CAP.MPSMIN; 0: no limit
  std::uint16_t cntlid{0};
  std::uint32_t ver{0};
  std::uint32_t rtd3r{0};
  std::uint32_t rtd3e{0};
  std::uint32_t oaes{0};
  std::uint32_t ctratt{0};
  std::uint8_t reserved100[11]{};
  std::uint8_t cntrltype{0};  // 1: I/O controller
  std::uint8_t reserved112[144]{};
  std::uint16_t oacs{0};
  std::uint8_t acl{0};   // Abort commands at once, 0's based
  std::uint8_t aerl{0};  // Asynchronous Event Requests at once, 0's based
  std::uint8_t frmw{0};
  std::uint8_t lpa{0};
  std::uint8_t elpe{0};
  std::uint8_t npss{0};
  std::uint8_t reserved264[56]{};
  std::uint16_t kas{0};  // granularity of the keep alive timer, 100 ms; 0: not supported
  std::uint8_t reserved322[190]{};
  std::uint8_t sqes{0};
  std::uint8_t cqes{0};
  std::uint16_t maxcmd{0};
  std::uint32_t nn{0};
  std::uint16_t oncs{0};
  std::uint16_t fuses{0};
  std::uint8_t fna{0};
  std::uint8_t vwc{0};
  std::uint8_t reserved526[10]{};
  std::uint32_t sgls{0};
  std::uint32_t mnan{0};
  std::uint8_t reserved544[224]{};
  char subnqn[256]{};
  std::uint8_t reserved1024[768]{};
  std::uint32_t ioccsz{
      0};  // I/O command capsule, units of 16 bytes: 4 for the SQE, the rest is in-capsule data
  std::uint32_t iorcsz{0};
  std::uint16_t icdoff{0};  // where in-capsule data starts, units of 16 bytes
  std::uint8_t fcatt{0};
  std::uint8_t msdbd{0};
  std::uint8_t reserved1804[2292]{};
};
static_assert(sizeof(IdentifyController) == kIdentifyBytes);
static_assert(offsetof(IdentifyController, cmic) == 76 && offsetof(IdentifyController, ver) == 80);
static_assert(offsetof(IdentifyController, cntrltype) == 111 && offsetof(IdentifyController, oacs) == 256);
static_assert(offsetof(IdentifyController, kas) == 320 && offsetof(IdentifyController, sqes) == 512);
static_assert(offsetof(IdentifyController, maxcmd) == 514 && offsetof(IdentifyController, nn) == 516);
static_assert(offsetof(IdentifyController, sgls) == 536 && offsetof(IdentifyController, subnqn) == 768);
static_assert(offsetof(IdentifyController, ioccsz) == 1792 && offsetof(IdentifyController, msdbd) == 1803);

inline constexpr std::uint8_t kCmicManyControllers = 0x02;
// Identify Controller, OAES: which asynchronous events there are; the same bits ask for them in Set Features.
inline constexpr std::uint32_t kOaesNamespaceAttribute = 1U << 8U;

inline constexpr std::uint32_t kSglsSupported = 1U;
inline constexpr std::uint32_t kSglsInCapsuleOffset = 1U << 20U;
inline constexpr std::uint32_t kSglsTransport = 1U << 21U;

// Bytes of in-capsule data of an I/O command (0 when IOCCSZ leaves none).
[[nodiscard]] constexpr std::uint32_t in_capsule_bytes(const IdentifyController& id) noexcept {
  constexpr std::uint32_t sqe_units = sizeof(Sqe) / 16;
  const std::uint64_t units = std::uint64_t{sqe_units} + id.icdoff;
  if (id.ioccsz <= units) return 0;
  const std::uint64_t bytes = (id.ioccsz - units) * 16;
  return bytes > 0xFFFFFFFFU ? 0xFFFFFFFFU : static_cast<std::uint32_t>(bytes);
}

// ASCII field of fixed width without the spaces (or zeros) behind it.
template <std::size_t N>
[[nodiscard]] constexpr std::string_view trimmed(const char (&field)[N]) noexcept {
  std::size_t length = N;
  while (length > 0 && (field[length - 1] == ' ' || field[length - 1] == '\0'))
    --length;
  return {field, length};
}

// Fills the field with `text` and spaces; longer text is cut.
template <std::size_t N>
constexpr void set_padded(char (&field)[N], std::string_view text) noexcept {
  for (std::size_t i = 0; i < N; ++i)
    field[i] = i < text.size() ? text[i] : ' ';
}

// CNS 00h (NVM Command Set 1.0, 4.1.5.1): the part that is common to namespaces of any command set.
struct IdentifyNamespace {
  std::uint64_t nsze{0};
  std::uint64_t ncap{0};
  std::uint64_t nuse{0};
  std::uint8_t nsfeat{0};
  std::uint8_t nlbaf{0};  // 0's based
  std::uint8_t flbas{0};
  std::uint8_t mc{0};
  std::uint8_t dpc{0};
  std::uint8_t dps{0};
  std::uint8_t nmic{0};  // bit 0: shared between controllers
  std::uint8_t rescap{0};
  std::uint8_t reserved32[72]{};
  std::uint8_t nguid[16]{};
  std::uint8_t eui64[8]{};
  std::uint32_t
      lbaf[64]{};  // metadata bytes [15:0], log2 of the block size [23:16], relative performance [25:24]
  std::uint8_t reserved384[3712]{};
};
static_assert(sizeof(IdentifyNamespace) == kIdentifyBytes);
static_assert(offsetof(IdentifyNamespace, nmic) == 30 && offsetof(IdentifyNamespace, nguid) == 104);
static_assert(offsetof(IdentifyNamespace, lbaf) == 128);

// KV 1.0, 4.1.5.1, "KV Format Data Structure".
struct KvFormat {
  std::uint16_t key_max_bytes{0};
  std::uint8_t reserved2{0};
  std::uint8_t options{0};
  std::uint32_t value_max_bytes{0};
  std::uint32_t max_keys{0};  // 0: no limit told
  std::uint8_t reserved12[4]{};
};
static_assert(sizeof(KvFormat) == 16);

// CNS 05h with CSI 1 (KV 1.0, 4.1.5.1). Sizes in bytes.
struct IdentifyKvNamespace {
  std::uint64_t nsze{0};
  std::uint8_t reserved8[8]{};
  std::uint64_t nuse{0};
  std::uint8_t nsfeat{0};
  std::uint8_t nkvf{0};  // formats, 0's based
  std::uint8_t nmic{0};
  std::uint8_t rescap{0};
  std::uint8_t fpi{0};
  std::uint8_t kvfc{0};  // bits 3:0: the format in use
  std::uint8_t reserved30[2]{};
  std::uint32_t novg{0};
  std::uint32_t anagrpid{0};
  std::uint8_t reserved40[3]{};
  std::uint8_t nsattr{0};
  std::uint16_t nvmsetid{0};
  std::uint16_t endgid{0};
  std::uint8_t nguid[16]{};
  std::uint8_t eui64[8]{};
  KvFormat formats[16]{};
  std::uint8_t reserved328[3768]{};

  [[nodiscard]] constexpr KvFormat format() const noexcept { return formats[kvfc & 0xFU]; }
};
static_assert(sizeof(IdentifyKvNamespace) == kIdentifyBytes);
static_assert(offsetof(IdentifyKvNamespace, kvfc) == 29 && offsetof(IdentifyKvNamespace, nguid) == 48);
static_assert(offsetof(IdentifyKvNamespace, formats) == 72);

// CNS 08h (5.17.2.8).
struct IdentifyNamespaceIndependent {
  std::uint8_t nsfeat{0};
  std::uint8_t nmic{0};
  std::uint8_t rescap{0};
  std::uint8_t fpi{0};
  std::uint32_t anagrpid{0};
  std::uint8_t nsattr{0};
  std::uint8_t reserved9{0};
  std::uint16_t nvmsetid{0};
  std::uint16_t endgid{0};
  std::uint8_t nstat{0};  // bit 0: ready
  std::uint8_t reserved15[4081]{};
};
static_assert(sizeof(IdentifyNamespaceIndependent) == kIdentifyBytes);

// CNS 02h and 07h: ascending NSIDs, zeros behind.
struct NamespaceList {
  std::uint32_t nsid[1024]{};
};
static_assert(sizeof(NamespaceList) == kIdentifyBytes);

// CNS 1Ch: combinations of I/O command sets; bit n of an entry is CSI n, bit 1 = Key Value.
struct CommandSetCombinations {
  std::uint64_t combination[512]{};
};
static_assert(sizeof(CommandSetCombinations) == kIdentifyBytes);

// CNS 03h (5.17.2.3): descriptors of NIDT u8, NIDL u8, 2 reserved bytes and NIDL bytes; NIDL 0 ends the list.
enum class IdentifierType : std::uint8_t { eui64 = 1, nguid = 2, uuid = 3, csi = 4 };
inline constexpr std::size_t kDescriptorHeaderBytes = 4;

}  // namespace akv::nvme
