// A value's first 64 bytes as a card gives them: decoding, and what follows from an envelope that passes.
#include "input.hpp"
#include "kv/envelope.hpp"
#include "kv/segments.hpp"

namespace akv::fuzz {
namespace {

using kv::Mismatch;

void check_split(const kv::Envelope& envelope) {
  const kv::Split split(envelope.total_length, envelope.segment_count);
  check(split.sound(), "a first segment that passes is of a sound split");
  std::uint64_t sum = 0;
  for (std::uint16_t i = 0; i < split.count(); ++i) {
    check(split.length(i) > 0, "no segment is empty");
    check(split.offset(i) == sum, "segments follow one another");
    sum += split.length(i);
  }
  check(sum == envelope.total_length, "the segments are the whole value");
}

void decode(std::span<const std::byte, kv::kEnvelopeBytes> bytes, Input& input) {
  kv::Envelope envelope;
  if (kv::decode(bytes, envelope) != Mismatch::none) return;
  const auto again = kv::encode(envelope);
  check(std::ranges::equal(again, bytes), "encoding gives back what was decoded");
  const kv::Expected expected{.key = envelope.key,
                              .namespace_id = envelope.namespace_id,
                              .value_size = input.number<std::uint32_t>()};
  if (kv::verify_first(envelope, expected) != Mismatch::none) return;
  check(envelope.payload_length + kv::kEnvelopeBytes == expected.value_size,
        "the card's size is the value's");
  check(envelope.payload_length <= envelope.total_length, "a segment is part of the value");
  check_split(envelope);
  const auto index = static_cast<std::uint16_t>(1 + input.number<std::uint8_t>());
  static_cast<void>(kv::verify_segment(envelope, expected, envelope, index));
}

}  // namespace
}  // namespace akv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  akv::fuzz::Input input(data, size);
  akv::kv::EnvelopeBytes bytes{};
  const bool sealed = (input.number<std::uint8_t>() & 1U) != 0;
  std::ranges::copy(input.bytes(bytes.size()), bytes.begin());
  if (sealed) {  // past the checksum, which no fuzzer guesses
    akv::kv::Envelope guess;
    std::memcpy(guess.key.data(), bytes.data() + 16, guess.key.size());
    std::memcpy(&guess.namespace_id, bytes.data() + 12, 4);
    std::memcpy(&guess.segment_index, bytes.data() + 6, 2);
    std::memcpy(&guess.segment_count, bytes.data() + 8, 2);
    std::memcpy(&guess.payload_length, bytes.data() + 48, 4);
    std::memcpy(&guess.total_length, bytes.data() + 52, 4);
    std::memcpy(&guess.payload_crc, bytes.data() + 56, 4);
    bytes = akv::kv::encode(guess);
  }
  akv::fuzz::decode(bytes, input);
  return 0;
}
