// Values that arrive in parts: taken while the rest is on its way, and the same as ever in the end.
#include <gtest/gtest.h>

#include "gateway_cache_support.hpp"

namespace akv::gateway::test {
namespace {

// What is told of a value before it is whole leaves no trace where it does not become one.
class GatewayArrival : public GatewayCache {
 protected:
  void SetUp() override {
    GatewayCache::SetUp();
    ASSERT_EQ(store(1, 1), EntryStatus::ok);
    queue().hold = true;
  }
  // A GET of key 1 of which the card has sent half.
  void half_arrives(std::uint64_t id = 10) {
    client.send(request(Opcode::get, 1, place, kLength, id));
    wait_held(1);
    queue().arrive(0, kLength / 2);
    EXPECT_EQ(held(), 3 * 4096U) << "there is room for the copy";
  }
  std::uint64_t held() { return bench.shared.cache.held->load(); }
  EntryStatus answer(std::size_t stride = 8) { return client.reply()->entry(0, stride); }
  // GETs of key 1 give the seed's block, the first from the card and the second from the cache.
  void expect_loads(unsigned seed) {
    queue().hold = false;
    const int before = asked(card::IoOp::retrieve);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(loads(1, seed));
      EXPECT_EQ(asked(card::IoOp::retrieve), before + 1);
    }
  }
};

TEST_F(GatewayArrival, IsVerifiedAndCopiedInParts) {
  fill(place, Bytes(kLength));
  half_arrives();
  fill(place, Bytes(kLength / 4));  // the client meddles with what came: the copy has it already
  queue().answer(0);
  EXPECT_EQ(answer(), EntryStatus::ok);
  EXPECT_TRUE(loads(1, 1));
  EXPECT_EQ(bench.counter(Counter::cache_hits), 1U);
}

TEST_F(GatewayArrival, DamageInEitherHalfIsFound) {
  Bytes& value = queue().values.begin()->second;
  for (const std::size_t at : {std::size_t{100}, value.size() - 1}) {
    value[at] ^= std::byte{1};
    half_arrives();
    queue().answer(0);
    EXPECT_EQ(answer(), EntryStatus::miss);
    EXPECT_EQ(held(), 0U);
    value[at] ^= std::byte{1};
  }
  EXPECT_EQ(bench.counter(Counter::miss_payload_crc), 2U);
  EXPECT_EQ(queue().corrupt_reports, 2U);
  expect_loads(1);
}

TEST_F(GatewayArrival, AValueThatEndsEarlyIsOfTheWrongLength) {
  half_arrives();
  queue().values.begin()->second.resize(kLength);
  queue().answer(0);
  EXPECT_EQ(answer(), EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::miss_envelope_length), 1U);
  EXPECT_EQ(held(), 0U);
}

TEST_F(GatewayArrival, AnotherKeysValueIsNotTakenAtAll) {
  queue().hold = false;
  ASSERT_EQ(store(2, 2), EntryStatus::ok);
  auto& values = queue().values;
  std::swap(values.begin()->second, values.rbegin()->second);
  queue().hold = true;
  client.send(request(Opcode::get, 1, place, kLength, 10));
  wait_held(1);
  queue().arrive(0, kLength / 2);
  EXPECT_EQ(held(), 0U);
  queue().answer(0);
  EXPECT_EQ(answer(), EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::miss_envelope_key), 1U);
}

TEST_F(GatewayArrival, AQueueThatDiesInTheMiddleIsAMissAndTheNextGetBeginsAnew) {
  half_arrives();
  queue().fail(0, card::IoStatus::disconnected);
  EXPECT_EQ(answer(), EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::miss_disconnected), 1U);
  half_arrives(11);
  queue().fail(0, card::IoStatus::error);
  EXPECT_EQ(answer(), EntryStatus::miss);
  EXPECT_EQ(held(), 0U);
  expect_loads(1);
}

TEST_F(GatewayArrival, ADeadlineInTheMiddleIsLate) {
  half_arrives();
  queue().time_out(0);
  EXPECT_EQ(answer(), EntryStatus::late);
  EXPECT_EQ(held(), 0U);
  const auto late = place;
  place = alloc(kLength);
  queue().release_late();
  EXPECT_EQ(content(late, kLength), payload_of(kLength, 1)) << "the card wrote it nonetheless";
  expect_loads(1);
}

TEST_F(GatewayArrival, APutThatBeginsInTheMiddleKeepsTheCopyOut) {
  half_arrives();
  const auto other = alloc(kLength);
  fill(other, payload_of(kLength, 2));
  client.send(request(Opcode::put, 1, other, kLength, 11));
  wait_held(2);
  queue().answer(0);
  EXPECT_EQ(answer(), EntryStatus::ok) << "it was asked for before";
  EXPECT_EQ(content(place, kLength), payload_of(kLength, 1));
  EXPECT_EQ(held(), 0U);
  queue().answer(0);
  EXPECT_EQ(answer(4), EntryStatus::ok);
  expect_loads(2);
}

TEST_F(GatewayArrival, MemoryThatSessionsTakeInTheMiddleIsGivenToThem) {
  half_arrives();
  TestClient other(bench);
  EXPECT_EQ(other.hello(512U << 10U)->number<std::uint64_t>(8), 512U << 10U);
  queue().answer(0);
  EXPECT_EQ(answer(), EntryStatus::ok);
  EXPECT_EQ(held(), 0U);
  other.hang_up();
  bench.turn(5);
  expect_loads(1);
}

TEST_F(GatewayArrival, AClientThatDiesInTheMiddleIsNoMatterOfWhoWaits) {
  TestClient first(bench);
  ASSERT_TRUE(first.hello(64U << 10U));
  first.send(frame(Opcode::get, Entries().add(key_of(1), 0, kLength, wire::kRegionInline).body, 1, 10));
  wait_held(1);
  queue().arrive(0, kLength / 2);
  client.send(request(Opcode::get, 1, place, kLength, 11));
  bench.turn(5);
  first.hang_up();
  bench.turn(5);
  queue().answer(0);
  EXPECT_EQ(answer(), EntryStatus::ok);
  EXPECT_EQ(content(place, kLength), payload_of(kLength, 1));
}

}  // namespace
}  // namespace akv::gateway::test
