// Frames of the client protocol (docs/protocol.md, version 1): constants, header and fixed bodies. No I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace akv::gateway::wire {

inline constexpr std::uint32_t kMagic = 0x31564B41;  // "AKV1"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 32;
inline constexpr std::uint16_t kReply = 0x8000;
inline constexpr std::uint16_t kErrorOpcode = 0xFFFF;
inline constexpr std::uint32_t kFeatureSharedMemory = 1;
inline constexpr std::uint32_t kFeatureRegions = 2;
inline constexpr std::uint32_t kFeatureBorrowing = 4;
inline constexpr std::uint16_t kRegionArena = 0;
inline constexpr std::uint16_t kRegionInline = 0xFFFF;
inline constexpr std::uint16_t kPrefixOnly = 1;  // request status of EXISTS
inline constexpr std::uint32_t kMaxBatch = 4096;
inline constexpr std::uint32_t kMaxBodyBeforeHello = 4096;
inline constexpr std::size_t kKeyBytes = 32;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMacBytes = 32;
inline constexpr std::size_t kMaxNamespaceBytes = 128;
inline constexpr std::size_t kTransferEntryBytes = 48;
inline constexpr std::size_t kGetReplyEntryBytes = 8;
inline constexpr std::size_t kExistsReplyBytes = 8;
inline constexpr std::size_t kWelcomeBytes = 80;
inline constexpr std::size_t kWelcomeRegionsBytes = 16;    // more, with kFeatureRegions
inline constexpr std::size_t kWelcomeBorrowingBytes = 16;  // more, with kFeatureBorrowing; the last
inline constexpr std::size_t kBorrowReplyEntryBytes = 16;
inline constexpr std::size_t kRegisterBytes = 16;
inline constexpr std::size_t kRegionBytes = 8;  // reply to REGISTER, and UNREGISTER

enum class Opcode : std::uint16_t {
  hello = 1,
  alloc = 2,
  free = 3,
  put = 4,
  get = 5,
  exists = 6,
  remove = 7,
  stats = 8,
  register_region = 9,
  unregister_region = 10,
  released = 11,  // from the gateway alone
  borrow = 12,
  give_back = 13,
};

enum class FrameStatus : std::uint16_t {
  ok = 0,
  busy = 1,
  auth_required = 2,
  auth_failed = 3,
  bad_request = 4,
  unsupported = 5,
  no_memory = 6,
  no_such_block = 7,
  shutting_down = 8,
};

enum class EntryStatus : std::uint32_t {
  ok = 0,
  miss = 1,
  not_stored = 2,
  too_large = 3,
  no_such_block = 4,
  too_small = 5,
  late = 6,
  not_cached = 7,
};

using Nonce = std::array<std::byte, kNonceBytes>;
using Mac = std::array<std::byte, kMacBytes>;

struct Header {
  std::uint32_t body_len{0};
  std::uint16_t opcode{0};
  std::uint16_t status{0};
  std::uint32_t count{0};
  std::uint64_t request_id{0};
  std::uint64_t dialog_id{0};

  bool operator==(const Header&) const = default;
};

void encode_header(const Header& header, std::span<std::byte, kHeaderBytes> to) noexcept;
// Nothing when the magic is wrong.
[[nodiscard]] std::optional<Header> decode_header(std::span<const std::byte, kHeaderBytes> from) noexcept;

struct Hello {
  std::uint16_t version_min{0};
  std::uint16_t version_max{0};
  std::uint32_t features{0};
  std::uint64_t arena_bytes{0};
  Nonce client_nonce{};
  Mac mac{};
  std::string name_space;

  // True where the client proves nothing yet.
  [[nodiscard]] bool mac_is_zero() const noexcept { return mac == Mac{}; }
};

// A request's body that can't be read; the text says why.
struct BadBody {
  std::string text;
};

// Throws BadBody.
[[nodiscard]] Hello decode_hello(std::span<const std::byte> body);

struct Welcome {
  std::uint32_t features{0};
  std::uint64_t arena_bytes{0};
  std::uint32_t block_align{0};
  std::uint32_t max_batch{kMaxBatch};
  std::uint32_t credits{0};
  std::uint32_t max_frame{0};
  std::uint32_t max_value{0};
  std::uint32_t max_entries{0};  // of outstanding requests together
  std::uint64_t session_id{0};
  Mac server_mac{};
  std::uint32_t max_regions{0};  // told with kFeatureRegions, as what follows
  std::uint64_t region_bytes{0};
  std::uint64_t cache_bytes{0};  // told with kFeatureBorrowing, as what follows
  std::uint32_t max_borrowed{0};

  // Where what follows the regions' part begins.
  [[nodiscard]] std::size_t borrowing_at() const noexcept {
    return kWelcomeBytes + ((features & kFeatureRegions) != 0 ? kWelcomeRegionsBytes : 0);
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return borrowing_at() + ((features & kFeatureBorrowing) != 0 ? kWelcomeBorrowingBytes : 0);
  }
};

// `to` has welcome.bytes() bytes.
void encode_welcome(const Welcome& welcome, std::span<std::byte> to) noexcept;

// One entry of the reply to BORROW.
struct Loan {
  EntryStatus status{EntryStatus::not_cached};
  std::uint32_t length{0};
  std::uint64_t offset{0};  // in the cache's memory
};

void encode_loan(const Loan& loan, std::span<std::byte, kBorrowReplyEntryBytes> to) noexcept;

// One entry of PUT or GET.
struct TransferEntry {
  const std::byte* key{nullptr};  // 32 bytes within the frame
  std::uint64_t offset{0};
  std::uint32_t length{0};
  std::uint16_t region{0};
  std::uint16_t flags{0};
};

[[nodiscard]] TransferEntry decode_transfer(std::span<const std::byte, kTransferEntryBytes> from) noexcept;

}  // namespace akv::gateway::wire
