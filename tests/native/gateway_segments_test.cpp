// Values that a card takes only in segments: whole or a miss, whatever happens to one of the segments.
#include <gtest/gtest.h>

#include "gateway_transfer_support.hpp"
#include "kv/envelope.hpp"

namespace akv::gateway::test {
namespace {

// On a card that takes a page of payload as one value, with a block of several pages.
class GatewayTransferSegments : public GatewayTransfer {
 protected:
  void SetUp() override {
    GatewayTransfer::SetUp();
    queue().max_value = 4096 + 64;
    offset = alloc(20'000);
    fill(offset, payload_of(20'000, 1));
  }

  static Bytes keys_of(const std::vector<unsigned>& numbers) {
    Bytes keys;
    for (const unsigned number : numbers)
      append(keys, key_of(number));
    return keys;
  }
  // Bit i: key i is there. At most eight.
  unsigned present(const std::vector<unsigned>& numbers) {
    const auto count = static_cast<std::uint32_t>(numbers.size());
    return std::to_integer<unsigned>(
        client.call(frame(Opcode::exists, keys_of(numbers), count, 1))->body.at(8));
  }
  std::uint32_t prefix(const std::vector<unsigned>& numbers) {
    const auto count = static_cast<std::uint32_t>(numbers.size());
    return client.call(frame(Opcode::exists, keys_of(numbers), count, 1, wire::kPrefixOnly))
        ->number<std::uint32_t>(0);
  }
  std::optional<Reply> remove(const std::vector<unsigned>& numbers) {
    return client.call(
        frame(Opcode::remove, keys_of(numbers), static_cast<std::uint32_t>(numbers.size()), 1));
  }
  // Whether a card's value is a whole block.
  static bool is_whole(const Bytes& value) {
    kv::Envelope envelope;
    const auto wrong = kv::decode(std::span<const std::byte>(value).first<kv::kEnvelopeBytes>(), envelope);
    return wrong == kv::Mismatch::none && envelope.segment_count == 1;
  }

  std::uint64_t offset{0};
};

TEST_F(GatewayTransfer, SegmentedValuesComeBackWhole) {
  queue().max_value = 10'000;
  const auto offset = alloc(100'000);
  for (const std::uint32_t length : {9936U, 9937U, 40'000U, 99'999U}) {
    const Bytes value = payload_of(length, length);
    fill(offset, value);
    ASSERT_EQ(put(length, offset, length), EntryStatus::ok);
    fill(offset, Bytes(length));
    ASSERT_EQ(get(length, offset, 100'000), EntryStatus::ok);
    EXPECT_EQ(content(offset, length), value);
  }
  EXPECT_EQ(queue().values.size(), 1U + 2 + 5 + 13);
  EXPECT_EQ(bench.counter(Counter::stored), 4U) << "a value counts once, however many segments it has";
}

TEST_F(GatewayTransfer, TheFirstSegmentIsStoredLast) {
  queue().max_value = 5000;
  queue().hold = true;
  const auto offset = alloc(12'000);
  client.send(request(Opcode::put, 1, offset, 12'000, 5));
  wait_held(2);
  queue().fail(1, card::IoStatus::no_space);
  queue().answer_all();
  EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::not_stored);
  queue().hold = false;
  EXPECT_EQ(queue().values.size(), 1U);
  EXPECT_EQ(get(1, offset, 12'000), EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::lost_no_space), 1U);
}

// Any byte of any stored value: a miss with a reason, never a wrong block.
TEST_F(GatewayTransferSegments, EveryDamagedByteIsAMiss) {
  fill(offset, payload_of(5000, 1));
  ASSERT_EQ(put(1, offset, 5000), EntryStatus::ok);
  std::uint64_t misses = 0;
  for (auto& [key, value] : queue().values) {
    for (std::size_t at = 0; at < value.size(); at += at < 70 ? 1 : 97) {
      value[at] ^= std::byte{4};
      ASSERT_EQ(get(1, offset, 5000), EntryStatus::miss) << "byte " << at;
      value[at] ^= std::byte{4};
      ++misses;
    }
  }
  EXPECT_EQ(get(1, offset, 5000), EntryStatus::ok);
  const auto reasons = bench.counter(Counter::miss_envelope_magic) +
                       bench.counter(Counter::miss_envelope_crc) + bench.counter(Counter::miss_payload_crc);
  EXPECT_EQ(reasons, misses);
  EXPECT_EQ(queue().corrupt_reports, misses) << "the card is to blame for each";
}

TEST_F(GatewayTransferSegments, SegmentsOfTwoValuesNeverPassAsOne) {
  fill(offset, payload_of(8192, 1));
  ASSERT_EQ(put(1, offset, 8192), EntryStatus::ok);
  const auto first = queue().values;
  fill(offset, payload_of(8192, 2));
  ASSERT_EQ(put(1, offset, 8192), EntryStatus::ok);
  ASSERT_EQ(queue().values.size(), 2U);
  // One segment of the older value comes back, as where a card lost its last writes.
  for (const auto& [key, value] : first) {
    const auto second = queue().values;
    queue().values[key] = value;
    EXPECT_EQ(get(1, offset, 8192), EntryStatus::miss);
    queue().values = second;
  }
  EXPECT_EQ(get(1, offset, 8192), EntryStatus::ok);
}

TEST_F(GatewayTransferSegments, AMissingSegmentIsAMiss) {
  ASSERT_EQ(put(1, offset, 20'000), EntryStatus::ok);
  const auto all = queue().values;
  for (const auto& [key, value] : all) {
    queue().values.erase(key);
    EXPECT_EQ(get(1, offset, 20'000), EntryStatus::miss);
    queue().values = all;
  }
}

TEST_F(GatewayTransferSegments, AValueIsThereOnlyWhenAllItsSegmentsAre) {
  ASSERT_EQ(put(1, offset, 20'000), EntryStatus::ok);
  ASSERT_EQ(put(2, offset, 4096), EntryStatus::ok);
  EXPECT_EQ(present({1, 2, 3}), 0b011U);
  const auto all = queue().values;
  ASSERT_EQ(all.size(), 6U);
  const auto single = std::ranges::find_if(all, [this](const auto& item) { return is_whole(item.second); });
  for (const auto& [key, value] : all) {
    queue().values.erase(key);
    EXPECT_EQ(present({1, 2, 3}), key == single->first ? 0b001U : 0b010U);
    EXPECT_EQ(prefix({2, 1, 3}), key == single->first ? 0U : 1U);
    queue().values = all;
  }
  EXPECT_EQ(prefix({1, 2, 3}), 2U);
}

TEST_F(GatewayTransferSegments, WhereABlockCantBeInSegmentsOneExistCommandTells) {
  ASSERT_EQ(put(2, offset, 4096), EntryStatus::ok);
  EXPECT_EQ(present({2, 3}), 0b01U);
  EXPECT_EQ(queue().submitted[card::IoOp::exist], 0) << "20,000 bytes were named";
  queue().max_value = 20'000 + 64;
  EXPECT_EQ(present({2, 3}), 0b01U);
  EXPECT_EQ(queue().submitted[card::IoOp::exist], 2);
}

TEST_F(GatewayTransferSegments, WhatOneClientNamedCountsForItsNamespace) {
  ASSERT_EQ(put(1, offset, 20'000), EntryStatus::ok);
  TestClient other(bench);
  ASSERT_TRUE(other.hello(0));
  const auto all = queue().values;
  for (const auto& [key, value] : all) {
    queue().values.erase(key);
    const auto reply = other.call(frame(Opcode::exists, key_of(1), 1, 1));
    EXPECT_EQ(reply->body.at(8), std::byte{0});
    queue().values = all;
  }
}

TEST_F(GatewayTransferSegments, DeleteRemovesEverySegment) {
  ASSERT_EQ(put(1, offset, 20'000), EntryStatus::ok);
  ASSERT_EQ(put(2, offset, 4096), EntryStatus::ok);
  const auto reply = remove({1, 2, 3});
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(reply->entry(i, 4), EntryStatus::ok);
  EXPECT_TRUE(queue().values.empty());
}

TEST_F(GatewayTransferSegments, ADeleteThatFailedHalfwayCanBeRepeated) {
  ASSERT_EQ(put(1, offset, 20'000), EntryStatus::ok);
  queue().hold = true;
  client.send(frame(Opcode::remove, key_of(1), 1, 1));
  wait_held(1);
  queue().answer(0);
  wait_held(4);
  queue().answer(2);
  queue().fail(0, card::IoStatus::error);
  EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::not_stored);
  let_go();
  bench.turn();
  EXPECT_GE(queue().values.size(), 1U);
  EXPECT_EQ(remove({1})->entry(0, 4), EntryStatus::ok);
  EXPECT_TRUE(queue().values.empty());
}

TEST_F(GatewayTransferSegments, DeleteRemovesWhatIsNoValueOfOurs) {
  ASSERT_EQ(put(2, offset, 4096), EntryStatus::ok);
  queue().values.begin()->second.assign(200, std::byte{7});
  EXPECT_EQ(present({2}), 0U) << "a GET is a miss";
  EXPECT_EQ(remove({2})->entry(0, 4), EntryStatus::ok);
  EXPECT_TRUE(queue().values.empty());
}

TEST_F(GatewayTransferSegments, AFailedSegmentIsNotToldBeforeTheOthersHaveArrived) {
  ASSERT_EQ(put(1, offset, 12'000), EntryStatus::ok);
  queue().hold = true;
  client.send(request(Opcode::get, 1, offset, 12'000, 2));
  wait_held(1);
  queue().answer(0);
  wait_held(2);
  queue().fail(0, card::IoStatus::not_found);
  bench.turn(5);
  client.receive();
  EXPECT_TRUE(client.received.empty()) << "the card still writes into a block that was answered for";
  queue().answer(0);
  EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::miss);
}

}  // namespace
}  // namespace akv::gateway::test
