// The 64 bytes before every payload on a card (docs/protocol.md, "Values on a card").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kv/keys.hpp"

namespace akv::kv {

inline constexpr std::size_t kEnvelopeBytes = 64;
inline constexpr std::uint32_t kEnvelopeMagic = 0x45564B41;  // "AKVE"
inline constexpr std::uint8_t kEnvelopeVersion = 1;

using EnvelopeBytes = std::array<std::byte, kEnvelopeBytes>;

struct Envelope {
  EngineKey key{};
  std::uint32_t namespace_id{0};
  std::uint16_t segment_index{0};
  std::uint16_t segment_count{1};
  std::uint32_t payload_length{0};  // of this segment
  std::uint32_t total_length{0};    // of the whole value
  // CRC-32C of the value from its first byte to this segment's last: segments of two different values of one
  // length can't be mixed.
  std::uint32_t payload_crc{0};

  bool operator==(const Envelope&) const = default;
};

// Why bytes from a card are not the value that was asked for.
enum class Mismatch : std::uint8_t {
  none,
  short_value,    // not even an envelope
  magic,          // not one of our values
  version,        // an envelope of another version, or with flags this version does not know
  envelope_crc,   // the envelope was damaged
  wrong_space,    // of another namespace
  wrong_key,      // of another engine key
  wrong_segment,  // not the segment that lies under this key
  wrong_length,   // lengths that contradict each other or the value's size on the card
  payload_crc,    // the payload was damaged
};

[[nodiscard]] std::string_view to_string(Mismatch mismatch) noexcept;

[[nodiscard]] EnvelopeBytes encode(const Envelope& envelope) noexcept;

// Reads an envelope; none when magic, version and CRC are right. `envelope` is set only then.
[[nodiscard]] Mismatch decode(std::span<const std::byte, kEnvelopeBytes> bytes, Envelope& envelope) noexcept;

// What a reader of one card key knows beforehand.
struct Expected {
  EngineKey key{};
  std::uint32_t namespace_id{0};
  std::uint32_t value_size{0};  // the value's size on the card in bytes, envelope included
};

// Checks a first (or only) segment, as far as the envelope can tell; the payload's CRC is still to be
// checked.
[[nodiscard]] Mismatch verify_first(const Envelope& envelope, const Expected& expected) noexcept;
// Checks a further segment of the value whose first envelope is `first`.
[[nodiscard]] Mismatch verify_segment(const Envelope& envelope, const Expected& expected,
                                      const Envelope& first, std::uint16_t index) noexcept;

}  // namespace akv::kv
