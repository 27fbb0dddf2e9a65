#include "kv/envelope.hpp"

#include <algorithm>

#include "base/bytes.hpp"
#include "base/crc32c.hpp"
#include "kv/segments.hpp"

namespace akv::kv {
namespace {

// Offsets of the fields.
constexpr std::size_t kMagic = 0;
constexpr std::size_t kVersion = 4;
constexpr std::size_t kFlags = 5;
constexpr std::size_t kSegmentIndex = 6;
constexpr std::size_t kSegmentCount = 8;
constexpr std::size_t kReserved = 10;
constexpr std::size_t kNamespace = 12;
constexpr std::size_t kKey = 16;
constexpr std::size_t kPayloadLength = 48;
constexpr std::size_t kTotalLength = 52;
constexpr std::size_t kPayloadCrc = 56;
constexpr std::size_t kEnvelopeCrc = 60;

// What holds for every segment.
Mismatch verify_common(const Envelope& envelope, const Expected& expected) noexcept {
  if (envelope.namespace_id != expected.namespace_id) return Mismatch::wrong_space;
  if (envelope.key != expected.key) return Mismatch::wrong_key;
  if (expected.value_size - kEnvelopeBytes != envelope.payload_length) return Mismatch::wrong_length;
  return Mismatch::none;
}

}  // namespace

std::string_view to_string(Mismatch mismatch) noexcept {
  switch (mismatch) {
    case Mismatch::none:
      return "none";
    case Mismatch::short_value:
      return "short_value";
    case Mismatch::magic:
      return "magic";
    case Mismatch::version:
      return "version";
    case Mismatch::envelope_crc:
      return "envelope_crc";
    case Mismatch::wrong_space:
      return "wrong_namespace";
    case Mismatch::wrong_key:
      return "wrong_key";
    case Mismatch::wrong_segment:
      return "wrong_segment";
    case Mismatch::wrong_length:
      return "wrong_length";
    case Mismatch::payload_crc:
      return "payload_crc";
  }
  return "unknown";
}

EnvelopeBytes encode(const Envelope& envelope) noexcept {
  EnvelopeBytes bytes{};
  store_le(bytes.data() + kMagic, kEnvelopeMagic);
  store_le(bytes.data() + kVersion, kEnvelopeVersion);
  store_le(bytes.data() + kSegmentIndex, envelope.segment_index);
  store_le(bytes.data() + kSegmentCount, envelope.segment_count);
  store_le(bytes.data() + kNamespace, envelope.namespace_id);
  std::ranges::copy(envelope.key, bytes.data() + kKey);
  store_le(bytes.data() + kPayloadLength, envelope.payload_length);
  store_le(bytes.data() + kTotalLength, envelope.total_length);
  store_le(bytes.data() + kPayloadCrc, envelope.payload_crc);
  store_le(bytes.data() + kEnvelopeCrc, crc32c(std::span(bytes).first<kEnvelopeCrc>()));
  return bytes;
}

Mismatch decode(std::span<const std::byte, kEnvelopeBytes> bytes, Envelope& envelope) noexcept {
  if (load_le<std::uint32_t>(bytes.data() + kMagic) != kEnvelopeMagic) return Mismatch::magic;
  if (load_le<std::uint32_t>(bytes.data() + kEnvelopeCrc) != crc32c(bytes.first<kEnvelopeCrc>())) {
    return Mismatch::envelope_crc;
  }
  const bool known = load_le<std::uint8_t>(bytes.data() + kVersion) == kEnvelopeVersion &&
                     load_le<std::uint8_t>(bytes.data() + kFlags) == 0 &&
                     load_le<std::uint16_t>(bytes.data() + kReserved) == 0;
  if (!known) return Mismatch::version;
  envelope.segment_index = load_le<std::uint16_t>(bytes.data() + kSegmentIndex);
  envelope.segment_count = load_le<std::uint16_t>(bytes.data() + kSegmentCount);
  envelope.namespace_id = load_le<std::uint32_t>(bytes.data() + kNamespace);
  std::copy_n(bytes.data() + kKey, envelope.key.size(), envelope.key.begin());
  envelope.payload_length = load_le<std::uint32_t>(bytes.data() + kPayloadLength);
  envelope.total_length = load_le<std::uint32_t>(bytes.data() + kTotalLength);
  envelope.payload_crc = load_le<std::uint32_t>(bytes.data() + kPayloadCrc);
  return Mismatch::none;
}

Mismatch verify_first(const Envelope& envelope, const Expected& expected) noexcept {
  if (const Mismatch common = verify_common(envelope, expected); common != Mismatch::none) return common;
  const bool sound = envelope.segment_index == 0 && envelope.segment_count >= 1 &&
                     envelope.segment_count <= kMaxSegments && envelope.total_length >= 1;
  if (!sound) return Mismatch::wrong_segment;
  const Split split(envelope.total_length, envelope.segment_count);
  if (!split.sound()) return Mismatch::wrong_segment;
  return split.length(0) == envelope.payload_length ? Mismatch::none : Mismatch::wrong_length;
}

Mismatch verify_segment(const Envelope& envelope, const Expected& expected, const Envelope& first,
                        std::uint16_t index) noexcept {
  if (const Mismatch common = verify_common(envelope, expected); common != Mismatch::none) return common;
  if (envelope.segment_index != index || envelope.segment_count != first.segment_count) {
    return Mismatch::wrong_segment;
  }
  const Split split(first.total_length, first.segment_count);
  const bool fits =
      envelope.total_length == first.total_length && envelope.payload_length == split.length(index);
  return fits ? Mismatch::none : Mismatch::wrong_length;
}

}  // namespace akv::kv
