#include "gateway/wire.hpp"

#include <algorithm>

#include "base/bytes.hpp"

namespace akv::gateway::wire {
namespace {

constexpr std::size_t kHelloFixedBytes = 82;

bool valid_utf8_tail(std::string_view text, std::size_t& at, unsigned lead) {
  const std::size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  if (at + more > text.size()) return false;
  unsigned code = lead & (0x3FU >> more);
  for (std::size_t i = 0; i < more; ++i, ++at) {
    const auto next = static_cast<unsigned char>(text[at]);
    if ((next & 0xC0U) != 0x80U) return false;
    code = code << 6U | (next & 0x3FU);
  }
  constexpr std::array<unsigned, 4> kSmallest{0, 0x80, 0x800, 0x10000};
  return code >= kSmallest[more] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

// UTF-8 without NUL.
bool valid_text(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at++]);
    if (lead == 0) return false;
    if (lead < 0x80) continue;
    if (lead < 0xC2 || lead > 0xF4 || !valid_utf8_tail(text, at, lead)) return false;
  }
  return true;
}

}  // namespace

void encode_header(const Header& header, std::span<std::byte, kHeaderBytes> to) noexcept {
  store_le(to.data(), kMagic);
  store_le(to.data() + 4, header.body_len);
  store_le(to.data() + 8, header.opcode);
  store_le(to.data() + 10, header.status);
  store_le(to.data() + 12, header.count);
  store_le(to.data() + 16, header.request_id);
  store_le(to.data() + 24, header.dialog_id);
}

std::optional<Header> decode_header(std::span<const std::byte, kHeaderBytes> from) noexcept {
  if (load_le<std::uint32_t>(from.data()) != kMagic) return std::nullopt;
  return Header{.body_len = load_le<std::uint32_t>(from.data() + 4),
                .opcode = load_le<std::uint16_t>(from.data() + 8),
                .status = load_le<std::uint16_t>(from.data() + 10),
                .count = load_le<std::uint32_t>(from.data() + 12),
                .request_id = load_le<std::uint64_t>(from.data() + 16),
                .dialog_id = load_le<std::uint64_t>(from.data() + 24)};
}

Hello decode_hello(std::span<const std::byte> body) {
  if (body.size() < kHelloFixedBytes) {
    throw BadBody{"HELLO has " + std::to_string(body.size()) + " bytes, fewer than " +
                  std::to_string(kHelloFixedBytes)};
  }
  Hello hello{.version_min = load_le<std::uint16_t>(body.data()),
              .version_max = load_le<std::uint16_t>(body.data() + 2),
              .features = load_le<std::uint32_t>(body.data() + 4),
              .arena_bytes = load_le<std::uint64_t>(body.data() + 8),
              .client_nonce = {},
              .mac = {},
              .name_space = {}};
  std::copy_n(body.data() + 16, kNonceBytes, hello.client_nonce.begin());
  std::copy_n(body.data() + 48, kMacBytes, hello.mac.begin());
  const std::size_t length = load_le<std::uint16_t>(body.data() + 80);
  if (body.size() != kHelloFixedBytes + length) {
    throw BadBody{"HELLO's namespace of " + std::to_string(length) + " bytes does not end with the frame"};
  }
  hello.name_space.assign(reinterpret_cast<const char*>(body.data() + kHelloFixedBytes), length);
  if (length == 0 || length > kMaxNamespaceBytes || !valid_text(hello.name_space)) {
    throw BadBody{"a namespace is 1 to 128 bytes of UTF-8 without NUL"};
  }
  return hello;
}

void encode_welcome(const Welcome& welcome, std::span<std::byte> to) noexcept {
  std::ranges::fill(to, std::byte{0});
  store_le(to.data(), kVersion);
  store_le(to.data() + 4, welcome.features);
  store_le(to.data() + 8, welcome.arena_bytes);
  store_le(to.data() + 16, welcome.block_align);
  store_le(to.data() + 20, welcome.max_batch);
  store_le(to.data() + 24, welcome.credits);
  store_le(to.data() + 28, welcome.max_frame);
  store_le(to.data() + 32, welcome.max_value);
  store_le(to.data() + 36, welcome.max_entries);
  store_le(to.data() + 40, welcome.session_id);
  std::ranges::copy(welcome.server_mac, to.data() + 48);
  if ((welcome.features & kFeatureRegions) != 0) {
    store_le(to.data() + kWelcomeBytes, welcome.max_regions);
    store_le(to.data() + kWelcomeBytes + 8, welcome.region_bytes);
  }
  if ((welcome.features & kFeatureBorrowing) != 0) {
    store_le(to.data() + welcome.borrowing_at(), welcome.cache_bytes);
    store_le(to.data() + welcome.borrowing_at() + 8, welcome.max_borrowed);
  }
}

void encode_loan(const Loan& loan, std::span<std::byte, kBorrowReplyEntryBytes> to) noexcept {
  store_le(to.data(), static_cast<std::uint32_t>(loan.status));
  store_le(to.data() + 4, loan.length);
  store_le(to.data() + 8, loan.offset);
}

TransferEntry decode_transfer(std::span<const std::byte, kTransferEntryBytes> from) noexcept {
  return {.key = from.data(),
          .offset = load_le<std::uint64_t>(from.data() + 32),
          .length = load_le<std::uint32_t>(from.data() + 40),
          .region = load_le<std::uint16_t>(from.data() + 44),
          .flags = load_le<std::uint16_t>(from.data() + 46)};
}

}  // namespace akv::gateway::wire
