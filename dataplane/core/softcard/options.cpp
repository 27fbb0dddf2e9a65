#include "softcard/options.hpp"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <stdexcept>

namespace akv::softcard {
namespace {

[[noreturn]] void refuse(std::string_view what, std::string_view text, std::string_view rule) {
  throw std::invalid_argument(std::string(what) + " '" + std::string(text) + "' must be " +
                              std::string(rule));
}

void check_name(std::string_view what, std::string_view text, std::size_t longest) {
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '.' || letter == '_' || letter == '-';
  });
  if (text.empty() || text.size() > longest || !plain || text.front() == '.') {
    refuse(what, text,
           "1 to " + std::to_string(longest) + " letters, digits, '.', '_' or '-', not starting with '.'");
  }
}

unsigned unit_shift(char unit) {
  switch (std::toupper(static_cast<unsigned char>(unit))) {
    case 'K':
      return 10;
    case 'M':
      return 20;
    case 'G':
      return 30;
    case 'T':
      return 40;
    default:
      return 0;
  }
}

}  // namespace

std::uint64_t parse_bytes(std::string_view option, std::string_view text) {
  constexpr std::string_view rule = "a number of bytes above 0, such as 1073741824, 512M or 4G";
  std::uint64_t number = 0;
  const auto* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  unsigned shift = 0;
  if (end != last) {
    shift = end + 1 == last ? unit_shift(*end) : 0;
    if (shift == 0) refuse(option, text, rule);
  }
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (error != std::errc{} || number == 0 || number > most >> shift) refuse(option, text, rule);
  return number << shift;
}

nvme::Uuid parse_uuid(std::string_view text) {
  constexpr std::string_view rule = "a UUID of 8-4-4-4-12 hexadecimal digits";
  constexpr std::array<std::size_t, 4> dashes{8, 13, 18, 23};
  if (text.size() != 36) refuse("uuid", text, rule);
  nvme::Uuid uuid{};
  std::size_t digits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (std::find(dashes.begin(), dashes.end(), i) != dashes.end()) {
      if (text[i] != '-') refuse("uuid", text, rule);
      continue;
    }
    unsigned digit = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 1, digit, 16);
    if (error != std::errc{} || end != text.data() + i + 1) refuse("uuid", text, rule);
    auto& byte = uuid[digits / 2];
    byte = static_cast<std::uint8_t>((static_cast<unsigned>(byte) << 4U) | digit);
    ++digits;
  }
  return uuid;
}

std::string uuid_text(const nvme::Uuid& uuid) {
  static constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += digits[uuid[i] >> 4U];
    out += digits[uuid[i] & 15U];
  }
  return out;
}

nvme::Uuid derive_uuid(std::string_view nqn, std::string_view serial) {
  std::string source = "akv-softcard-1";
  source.append(1, '\0').append(nqn).append(1, '\0').append(serial);
  nvme::Uuid uuid{};
  crypto_generichash(uuid.data(), uuid.size(), reinterpret_cast<const unsigned char*>(source.data()),
                     source.size(), nullptr, 0);
  uuid[6] =
      static_cast<std::uint8_t>((uuid[6] & 0x0FU) | 0x80U);  // RFC 9562, version 8: of the maker's own scheme
  uuid[8] = static_cast<std::uint8_t>((uuid[8] & 0x3FU) | 0x80U);
  return uuid;
}

void check_card_id(std::string_view id) {
  check_name("id", id, 32);
}

void check_serial(std::string_view serial) {
  check_name("serial", serial, 20);
}

void check_nqn(std::string_view nqn) {
  const bool printable =
      std::all_of(nqn.begin(), nqn.end(), [](unsigned char letter) { return std::isgraph(letter) != 0; });
  if (!nqn.starts_with("nqn.") || nqn.size() > nvme::kNqnMaxBytes || !printable) {
    refuse("nqn", nqn,
           "'nqn.' and a name, at most 223 printable characters, such as nqn.2024-01.io.example:card0");
  }
}

}  // namespace akv::softcard
