#include "card/uuid.hpp"

namespace akv::card {
namespace {

constexpr std::size_t kTextSize = 36;

constexpr bool is_dash_position(std::size_t at) {
  return at == 8 || at == 13 || at == 18 || at == 23;
}

std::optional<unsigned> hex_digit(char digit) noexcept {
  if (digit >= '0' && digit <= '9') return static_cast<unsigned>(digit - '0');
  if (digit >= 'a' && digit <= 'f') return static_cast<unsigned>(digit - 'a' + 10);
  if (digit >= 'A' && digit <= 'F') return static_cast<unsigned>(digit - 'A' + 10);
  return std::nullopt;
}

}  // namespace

std::optional<nvme::Uuid> parse_uuid(std::string_view text) noexcept {
  if (text.size() != kTextSize) return std::nullopt;
  nvme::Uuid uuid{};
  std::size_t nibble = 0;
  for (std::size_t at = 0; at < kTextSize; ++at) {
    if (is_dash_position(at)) {
      if (text[at] != '-') return std::nullopt;
      continue;
    }
    const auto digit = hex_digit(text[at]);
    if (!digit) return std::nullopt;
    auto& byte = uuid[nibble / 2];
    byte = static_cast<std::uint8_t>((std::uint32_t{byte} << 4U) | *digit);
    ++nibble;
  }
  return uuid;
}

std::string format_uuid(const nvme::Uuid& uuid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : uuid) {
    if (is_dash_position(text.size())) text += '-';
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 0xFU];
  }
  return text;
}

}  // namespace akv::card
