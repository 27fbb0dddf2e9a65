#include "kv/envelope.hpp"

#include <gtest/gtest.h>

#include <random>

#include "base/bytes.hpp"
#include "base/crc32c.hpp"
#include "kv/segments.hpp"
#include "vectors.hpp"

namespace akv::kv {
namespace {

using test::array_from_hex;
using test::from_hex;

Envelope sample() {
  Envelope envelope;
  for (std::size_t i = 0; i < envelope.key.size(); ++i)
    envelope.key[i] = static_cast<std::byte>(i + 1);
  envelope.namespace_id = 0x01020304;
  envelope.payload_length = 1000;
  envelope.total_length = 1000;
  envelope.payload_crc = 0xCAFEBABE;
  return envelope;
}

Expected expected_of(const Envelope& envelope) {
  return {.key = envelope.key,
          .namespace_id = envelope.namespace_id,
          .value_size = static_cast<std::uint32_t>(envelope.payload_length + kEnvelopeBytes)};
}

TEST(KvEnvelope, FollowsTheSharedVectors) {
  init_crypto();
  const auto vectors = test::read_vectors("envelope.json");
  ASSERT_FALSE(vectors["values"].empty());
  for (const auto& row : vectors["values"]) {
    const auto value = from_hex(row["value"]);
    const auto key = array_from_hex<EngineKey>(row["engine_key"]);
    const std::string name = row["namespace"];
    const KeyDeriver keys(name, array_from_hex<Secret>(row["secret"]), row["num_dbs"].get<std::uint32_t>());
    const auto total = static_cast<std::uint32_t>(value.size());
    const auto split = split_for(total, row["max_value_bytes"].get<std::uint32_t>());
    ASSERT_TRUE(split && split->count() == row["segments"].size());
    for (std::uint16_t i = 0; i < split->count(); ++i) {
      const auto& segment = row["segments"][i];
      const Envelope envelope{
          .key = key,
          .namespace_id = namespace_id(name),
          .segment_index = i,
          .segment_count = split->count(),
          .payload_length = split->length(i),
          .total_length = total,
          .payload_crc = crc32c(std::span(value).first(split->offset(i) + split->length(i)))};
      EXPECT_EQ(encode(envelope), array_from_hex<EnvelopeBytes>(segment["envelope"]));
      const CardKey card_key = i == 0 ? keys.value_key(key) : keys.segment_key(key, i, split->count(), total);
      EXPECT_EQ(card_key, array_from_hex<CardKey>(segment["card_key"]));
    }
  }
}

TEST(KvEnvelope, WhatIsEncodedIsDecoded) {
  const Envelope envelope = sample();
  Envelope back;
  ASSERT_EQ(decode(encode(envelope), back), Mismatch::none);
  EXPECT_EQ(back, envelope);
  EXPECT_EQ(verify_first(back, expected_of(envelope)), Mismatch::none);
}

TEST(KvEnvelope, EveryDamagedBitIsFound) {
  const EnvelopeBytes good = encode(sample());
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    EnvelopeBytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    Envelope decoded;
    const Mismatch found = decode(bad, decoded);
    EXPECT_EQ(found, bit < 32 ? Mismatch::magic : Mismatch::envelope_crc) << "bit " << bit;
  }
}

// An envelope that was written whole, by another version or for something else.
EnvelopeBytes with_right_crc(EnvelopeBytes bytes) {
  store_le(bytes.data() + 60, crc32c(std::span(bytes).first<60>()));
  return bytes;
}

TEST(KvEnvelope, UnknownVersionsFlagsAndReservedFieldsAreRefused) {
  for (const std::size_t at : {4U, 5U, 10U, 11U}) {
    EnvelopeBytes bytes = encode(sample());
    bytes[at] ^= std::byte{0x10};
    Envelope decoded;
    EXPECT_EQ(decode(with_right_crc(bytes), decoded), Mismatch::version) << "byte " << at;
  }
}

TEST(KvEnvelope, EachFieldThatContradictsTheRequestHasItsReason) {
  const Expected expected = expected_of(sample());
  const auto verify = [&](auto change) {
    Envelope envelope = sample();
    change(envelope);
    return verify_first(envelope, expected);
  };
  EXPECT_EQ(verify([](Envelope& e) { e.namespace_id = 9; }), Mismatch::wrong_space);
  EXPECT_EQ(verify([](Envelope& e) { e.key[31] = {}; }), Mismatch::wrong_key);
  EXPECT_EQ(verify([](Envelope& e) { e.payload_length = 999; }), Mismatch::wrong_length);
  EXPECT_EQ(verify([](Envelope& e) { e.total_length = 999; }), Mismatch::wrong_length);
  EXPECT_EQ(verify([](Envelope& e) { e.total_length = 0; }), Mismatch::wrong_segment);
  EXPECT_EQ(verify([](Envelope& e) { e.segment_index = 1; }), Mismatch::wrong_segment);
  EXPECT_EQ(verify([](Envelope& e) { e.segment_count = 0; }), Mismatch::wrong_segment);
  EXPECT_EQ(verify([](Envelope& e) { e.segment_count = 2; }), Mismatch::wrong_segment);
  EXPECT_EQ(verify([](Envelope& e) { e.segment_count = 65535; }), Mismatch::wrong_segment);
}

TEST(KvEnvelope, AFurtherSegmentMustBelongToTheFirst) {
  Envelope first = sample();
  first.segment_count = 3;
  first.total_length = 3 * 4096 - 5;
  first.payload_length = 4096;
  Envelope second = first;
  second.segment_index = 1;
  const Expected expected = expected_of(second);
  const auto verify = [&](auto change) {
    Envelope envelope = second;
    change(envelope);
    return verify_segment(envelope, expected, first, 1);
  };
  EXPECT_EQ(verify([](Envelope&) {}), Mismatch::none);
  EXPECT_EQ(verify([](Envelope& e) { e.segment_index = 2; }), Mismatch::wrong_segment);
  EXPECT_EQ(verify([](Envelope& e) { e.segment_count = 4; }), Mismatch::wrong_segment);
  EXPECT_EQ(verify([](Envelope& e) { e.total_length += 1; }), Mismatch::wrong_length);
  EXPECT_EQ(verify([](Envelope& e) { e.key[0] = {}; }), Mismatch::wrong_key);
  EXPECT_EQ(verify_segment(second, {second.key, second.namespace_id, 4096}, first, 1),
            Mismatch::wrong_length);
}

TEST(KvSegments, CutsFollowTheSharedVectors) {
  const auto vectors = test::read_vectors("envelope.json");
  for (const auto& row : vectors["cuts"]) {
    const auto split =
        split_for(row["total"].get<std::uint32_t>(), row["max_value_bytes"].get<std::uint32_t>());
    ASSERT_TRUE(split && split->count() == row["segments"].size());
    for (std::uint16_t i = 0; i < split->count(); ++i) {
      EXPECT_EQ(split->offset(i), row["segments"][i][0].get<std::size_t>());
      EXPECT_EQ(split->offset(i) + split->length(i), row["segments"][i][1].get<std::size_t>());
    }
  }
}

TEST(KvSegments, CoverTheValueExactlyForRandomSizes) {
  std::mt19937 random(7);
  for (int round = 0; round < 5000; ++round) {
    const auto total = std::uniform_int_distribution<std::uint32_t>(1, 64U << 20U)(random);
    const auto room = std::uniform_int_distribution<std::uint32_t>(4096 + 64, 8U << 20U)(random);
    const auto split = split_for(total, room);
    if (!split) {
      EXPECT_GT(total / ((room - 64) / 4096 * 4096) + 1, kMaxSegments);
      continue;
    }
    std::size_t end = 0;
    for (std::uint16_t i = 0; i < split->count(); ++i) {
      ASSERT_EQ(split->offset(i), end);
      ASSERT_GT(split->length(i), 0U);
      ASSERT_LE(split->length(i) + kEnvelopeBytes, room);
      end += split->length(i);
    }
    ASSERT_EQ(end, total);
    ASSERT_TRUE(split->sound());
  }
}

TEST(KvSegments, CardsThatTakeNothingGetNothing) {
  for (const std::uint32_t room : {0U, 63U, 64U})
    EXPECT_FALSE(split_for(1, room).has_value());
  EXPECT_FALSE(split_for(5000, 4000).has_value());
  EXPECT_FALSE(split_for(4096U * (kMaxSegments + 1U), 4096 + 64).has_value());
}

}  // namespace
}  // namespace akv::kv
