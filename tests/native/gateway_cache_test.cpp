// The read cache and shared answers: never a stale block, never another's, and the card is asked once.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "gateway_cache_support.hpp"

namespace akv::gateway::test {
namespace {

TEST_F(GatewayCache, AHitAsksNoCard) {
  ASSERT_EQ(store(1, 1), EntryStatus::ok);
  EXPECT_TRUE(loads(1, 1));
  EXPECT_EQ(bench.counter(Counter::cache_fills), 1U);
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(loads(1, 1));
  EXPECT_EQ(asked(card::IoOp::retrieve), 1);
  EXPECT_EQ(bench.counter(Counter::cache_hits), 3U);
  EXPECT_EQ(bench.counter(Counter::hits), 4U);
  EXPECT_EQ(bench.shared.cache.held->load(), 3 * 4096U);
}

TEST_F(GatewayCache, AHitNeedsRoomForTheBlockAsAnyGet) {
  store(1, 1);
  EXPECT_TRUE(loads(1, 1));
  const auto reply = client.call(request(Opcode::get, 1, place, kLength - 1, 1));
  EXPECT_EQ(reply->entry(0, 8), EntryStatus::too_small);
  EXPECT_EQ(reply->number<std::uint32_t>(4), kLength);
}

TEST_F(GatewayCache, ExistsOfACachedBlockAsksNoCardAndIsTrueEvenWhenTheCardEvictedIt) {
  store(1, 1);
  store(2, 2);
  EXPECT_TRUE(loads(1, 1));
  queue().values.clear();
  EXPECT_TRUE(exists(1));
  EXPECT_EQ(asked(card::IoOp::exist), 0);
  EXPECT_TRUE(loads(1, 1)) << "what EXISTS said must hold";
  EXPECT_FALSE(exists(2)) << "what is not cached is the card's to know";
  EXPECT_EQ(asked(card::IoOp::exist), 1);
}

TEST_F(GatewayCache, APutReplacesWhatIsCached) {
  store(1, 1);
  EXPECT_TRUE(loads(1, 1));
  store(1, 2);
  EXPECT_TRUE(loads(1, 2));
  EXPECT_TRUE(loads(1, 2));
  EXPECT_EQ(bench.counter(Counter::cache_stale), 1U);
}

TEST_F(GatewayCache, ADeleteTakesTheCopyToo) {
  store(1, 1);
  EXPECT_TRUE(loads(1, 1));
  EXPECT_EQ(remove(1), EntryStatus::ok);
  EXPECT_FALSE(exists(1));
  EXPECT_EQ(get(1, place, kLength), EntryStatus::miss);
}

TEST_F(GatewayCache, AnAnswerThatAPutOvertookIsNotKept) {
  store(1, 1);
  const auto other = alloc(kLength);
  const auto before = put_overtakes_get(other);
  // The card read the old value before it took the new one; only its answer was slow.
  const auto after = std::exchange(queue().values, before);
  queue().answer(0);
  EXPECT_EQ(client.reply()->header.request_id, 10U);
  EXPECT_EQ(content(place, kLength), payload_of(kLength, 1));
  queue().values = after;
  queue().hold = false;
  EXPECT_TRUE(loads(1, 2));
}

TEST_F(GatewayCache, WhoAsksAfterAPutIsNotGivenAnAnswerFromBefore) {
  store(1, 1);
  const auto other = alloc(kLength);
  const auto before = put_overtakes_get(other);
  client.send(request(Opcode::get, 1, other, kLength, 12));
  wait_held(2);  // it does not wait for the first one
  const auto after = std::exchange(queue().values, before);
  queue().answer(0);
  ASSERT_EQ(client.reply()->header.request_id, 10U);
  queue().values = after;
  queue().answer(0);
  ASSERT_EQ(client.reply()->header.request_id, 12U);
  EXPECT_EQ(content(other, kLength), payload_of(kLength, 2));
}

TEST_F(GatewayCache, ALatePutKeepsItsKeyOutOfTheCacheUntilTheCardLetsGo) {
  store(1, 1);
  EXPECT_TRUE(loads(1, 1));
  const auto source = alloc(kLength);
  fill(source, payload_of(kLength, 2));
  queue().hold = true;
  client.send(request(Opcode::put, 1, source, kLength, 10));
  wait_held(1);
  queue().time_out(0);
  EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::not_stored);
  queue().hold = false;
  EXPECT_TRUE(loads(1, 1));
  EXPECT_TRUE(loads(1, 1));
  EXPECT_EQ(asked(card::IoOp::retrieve), 3) << "the copy could be replaced at any time";
  queue().release_late();  // the card stores it after all
  EXPECT_TRUE(loads(1, 2));
  EXPECT_TRUE(loads(1, 2));
  EXPECT_EQ(asked(card::IoOp::retrieve), 4);
}

TEST_F(GatewayCache, GetsOfOneBlockAskTheCardOnce) {
  store(1, 1);
  TestClient second(bench);
  ASSERT_TRUE(second.hello(64U << 10U));
  queue().hold = true;
  Entries entries;
  std::vector<std::uint64_t> places;
  for (int i = 0; i < 3; ++i) {
    places.push_back(alloc(kLength));
    entries.add(key_of(1), places.back(), kLength);
  }
  client.send(frame(Opcode::get, entries.body, 3, 10));
  wait_held(1);
  second.send(frame(Opcode::get, Entries().add(key_of(1), 0, kLength, wire::kRegionInline).body, 1, 11));
  bench.turn(5);
  ASSERT_EQ(queue().held.size(), 1U);
  queue().answer(0);
  const auto reply = client.reply();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(reply->entry(i, 8), EntryStatus::ok);
    EXPECT_EQ(content(places[i], kLength), payload_of(kLength, 1));
  }
  const auto other = second.reply();
  ASSERT_EQ(other->entry(0, 8), EntryStatus::ok);
  EXPECT_EQ(Bytes(other->body.begin() + 8, other->body.end()), payload_of(kLength, 1));
  EXPECT_EQ(asked(card::IoOp::retrieve), 1);
  EXPECT_EQ(bench.counter(Counter::gets_shared), 3U);
}

TEST_F(GatewayCache, WhoWaitsForAnotherSharesItsMissButNotItsQuarantine) {
  queue().hold = true;
  const auto other = alloc(kLength);
  client.send(request(Opcode::get, 1, place, kLength, 10));
  wait_held(1);
  client.send(request(Opcode::get, 1, other, kLength, 11));
  bench.turn(5);
  queue().time_out(0);
  std::map<std::uint64_t, EntryStatus> status;
  for (int i = 0; i < 2; ++i) {
    const auto reply = client.reply();
    status[reply->header.request_id] = reply->entry(0, 8);
  }
  EXPECT_EQ(status[10], EntryStatus::late);
  EXPECT_EQ(status[11], EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::miss_timeout), 2U);
  EXPECT_EQ(bench.counter(Counter::misses), 2U);
}

TEST_F(GatewayCache, WhoHasMoreRoomThanTheFirstAsksItself) {
  store(1, 1);
  queue().hold = true;
  const auto other = alloc(kLength);
  client.send(request(Opcode::get, 1, place, 100, 10));
  wait_held(1);
  client.send(request(Opcode::get, 1, other, kLength, 11));
  client.send(request(Opcode::get, 1, place + 200, 100, 12));
  bench.turn(5);
  ASSERT_EQ(queue().held.size(), 1U);
  queue().answer(0);
  wait_held(1);
  queue().answer(0);
  std::map<std::uint64_t, EntryStatus> status;
  for (int i = 0; i < 3; ++i) {
    const auto reply = client.reply();
    status[reply->header.request_id] = reply->entry(0, 8);
  }
  EXPECT_EQ(status[10], EntryStatus::too_small);
  EXPECT_EQ(status[12], EntryStatus::too_small);
  EXPECT_EQ(status[11], EntryStatus::ok);
  EXPECT_EQ(content(other, kLength), payload_of(kLength, 1));
  EXPECT_EQ(bench.counter(Counter::gets_shared), 1U) << "the one whose room is too small as well";
}

TEST_F(GatewayCache, WhoWaitsIsAnsweredWhenTheFirstIsGone) {
  store(1, 1);
  TestClient first(bench);
  ASSERT_TRUE(first.hello(64U << 10U));
  queue().hold = true;
  first.send(frame(Opcode::get, Entries().add(key_of(1), 0, kLength, wire::kRegionInline).body, 1, 10));
  wait_held(1);
  client.send(request(Opcode::get, 1, place, kLength, 11));
  bench.turn(5);
  first.hang_up();
  bench.turn(5);
  queue().answer(0);
  EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::ok);
  EXPECT_EQ(content(place, kLength), payload_of(kLength, 1));
}

TEST_F(GatewayCache, NoClientCanChangeACopy) {
  store(1, 1);
  EXPECT_TRUE(loads(1, 1));
  fill(place, payload_of(kLength, 9));  // the memory that the copy came from
  EXPECT_TRUE(loads(1, 1));
  fill(place, payload_of(kLength, 9));  // the memory that a copy went to
  EXPECT_TRUE(loads(1, 1));
}

TEST_F(GatewayCache, ADamagedBlockIsNotKept) {
  store(1, 1);
  queue().values.begin()->second.back() ^= std::byte{1};
  EXPECT_EQ(get(1, place, kLength), EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::miss_payload_crc), 1U);
  EXPECT_EQ(bench.shared.cache.held->load(), 0U);
  queue().values.begin()->second.back() ^= std::byte{1};
  EXPECT_TRUE(loads(1, 1));
}

TEST_F(GatewayCache, NamespacesDoNotShareCopies) {
  store(1, 1);
  EXPECT_TRUE(loads(1, 1));
  TestClient other(bench);
  ASSERT_TRUE(other.hello(0, "other"));
  const Bytes ask = Entries().add(key_of(1), 0, kLength, wire::kRegionInline).body;
  EXPECT_EQ(other.call(frame(Opcode::get, ask, 1, 2))->entry(0, 8), EntryStatus::miss);
  EXPECT_EQ(other.call(frame(Opcode::exists, key_of(1), 1, 3))->number<std::uint32_t>(0), 0U);
}

TEST_F(GatewayCache, ACardThatWasAwayIsAskedAnew) {
  store(1, 1);
  EXPECT_TRUE(loads(1, 1));
  bench.route({});
  EXPECT_EQ(get(1, place, kLength), EntryStatus::miss);
  EXPECT_FALSE(exists(1));
  queue().values.clear();
  bench.route({"C0"});
  EXPECT_FALSE(exists(1));
  EXPECT_EQ(get(1, place, kLength), EntryStatus::miss);
}

// A lane that has something under way when its card leaves can't be forgotten yet; its copies are all the
// same.
TEST_F(GatewayCache, ACardThatLeftWithAnAnswerUnderWayIsAskedAnew) {
  store(1, 1);
  for (const bool answered_before_it_is_back : {true, false}) {
    store(1, 1);
    EXPECT_TRUE(loads(1, 1));
    queue().hold = true;
    client.send(request(Opcode::get, 2, place, kLength, 10));
    wait_held(1);
    bench.route({});
    if (answered_before_it_is_back) let_go();
    bench.turn();
    bench.route({"C0"});
    let_go();
    EXPECT_EQ(client.reply()->header.request_id, 10U);
    queue().values.clear();
    EXPECT_FALSE(exists(1));
    EXPECT_EQ(get(1, place, kLength), EntryStatus::miss);
  }
}

TEST_F(GatewayCache, AnAnswerOfACardThatLeftIsNoCopyOfTheOneThatCameBack) {
  store(1, 1);
  queue().hold = true;
  client.send(request(Opcode::get, 1, place, kLength, 10));
  wait_held(1);
  bench.route({});
  bench.route({"C0"});
  let_go();
  EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::ok);
  queue().values.clear();
  EXPECT_FALSE(exists(1));
}

TEST_F(GatewayCache, AnotherCardOfTheSameSerialIsAskedAnew) {
  store(1, 1);
  EXPECT_TRUE(loads(1, 1));
  bench.route({"C0"});
  queue().values.clear();
  EXPECT_TRUE(exists(1)) << "the plan said nothing new of it";
  bench.route({"C0"}, 128, "nqn.2026-01.test:b");
  EXPECT_FALSE(exists(1));
  EXPECT_EQ(get(1, place, kLength), EntryStatus::miss);
}

TEST_F(GatewayCache, AnotherNumDbsIsAnotherKeySpace) {
  store(1, 1);
  EXPECT_TRUE(loads(1, 1));
  bench.route({"C0"}, 64);
  EXPECT_EQ(get(1, place, kLength), EntryStatus::miss);
  bench.route({"C0"}, 128);
  EXPECT_TRUE(loads(1, 1));
  EXPECT_EQ(asked(card::IoOp::retrieve), 2);
}

TEST_F(GatewayCache, SegmentedValuesAreCachedWhole) {
  queue().max_value = 4096 + 64;
  store(1, 1);
  EXPECT_TRUE(loads(1, 1));
  const int before = asked(card::IoOp::retrieve);
  EXPECT_TRUE(loads(1, 1));
  EXPECT_TRUE(exists(1));
  EXPECT_EQ(asked(card::IoOp::retrieve), before);
}

TEST_F(GatewayCache, SessionsTakeTheirMemoryFromTheCache) {
  for (unsigned key = 0; key < 60; ++key) {
    store(key, key);
    ASSERT_TRUE(loads(key, key));
  }
  const auto held = [this] { return bench.shared.cache.held->load(); };
  const std::uint64_t full = held();
  EXPECT_GT(full, 400U << 10U);
  EXPECT_LE(full, 512U << 10U);
  EXPECT_GT(bench.counter(Counter::cache_evictions), 0U);
  TestClient other(bench);
  EXPECT_EQ(other.hello(400U << 10U)->number<std::uint64_t>(8), 400U << 10U);
  const std::uint64_t left = (1U << 20U) - kArena - (400U << 10U);
  EXPECT_LE(held(), left);
  // It still works in what is left, and gets its share back when the session ends.
  store(99, 99);
  EXPECT_TRUE(loads(99, 99));
  EXPECT_TRUE(loads(99, 99));
  EXPECT_LE(held(), left);
  other.hang_up();
  bench.turn(5);
  for (unsigned key = 100; key < 160; ++key) {
    store(key, key);
    ASSERT_TRUE(loads(key, key));
  }
  EXPECT_GT(held(), left);
}

TEST_F(GatewayCache, ABlockThatWouldPushOutMostOthersIsNotKept) {
  const std::uint32_t large = (512U << 10U) / 8 + 1;
  const auto offset = alloc(large);
  fill(offset, payload_of(large, 1));
  ASSERT_EQ(put(1, offset, large), EntryStatus::ok);
  EXPECT_EQ(get(1, offset, large), EntryStatus::ok);
  EXPECT_EQ(bench.shared.cache.held->load(), 0U);
}

class GatewayWithoutCache : public GatewayCache {
 protected:
  GatewayWithoutCache() : GatewayCache(0) {}
};

TEST_F(GatewayWithoutCache, GetsOfOneBlockStillAskTheCardOnce) {
  store(1, 1);
  queue().hold = true;
  const auto other = alloc(kLength);
  client.send(request(Opcode::get, 1, place, kLength, 10));
  client.send(request(Opcode::get, 1, other, kLength, 11));
  wait_held(1);
  bench.turn(5);
  ASSERT_EQ(queue().held.size(), 1U);
  let_go();
  EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::ok);
  EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::ok);
  EXPECT_EQ(content(other, kLength), payload_of(kLength, 1));
  EXPECT_EQ(asked(card::IoOp::retrieve), 1);
  EXPECT_TRUE(loads(1, 1));
  EXPECT_EQ(asked(card::IoOp::retrieve), 2);
}

// A greedy session has all its credits out with large batches; a small one asks for a single block.
TEST_F(GatewayCache, AGreedySessionDelaysAnotherByABoundedNumberOfCommands) {
  TestClient greedy(bench);
  ASSERT_TRUE(greedy.hello(0));
  queue().hold = true;
  for (unsigned batch = 0; batch < 4; ++batch) {
    Bytes keys;
    for (unsigned i = 0; i < 4096; ++i)
      append(keys, key_of(4096 * batch + i));
    greedy.send(frame(Opcode::exists, keys, 4096, 10 + batch));
  }
  ASSERT_TRUE(bench.turn_until([&] { return queue().held.size() == Limits{}.card_commands; }));
  client.send(request(Opcode::get, 99'999, place, kLength, 1));
  bench.turn(5);
  // Commands that are with the card already, and one quantum of the other session.
  const unsigned most = Limits{}.card_commands + 2 * Turns::kQuantum / 4096;
  unsigned answered = 0;
  while (bench.counter(Counter::misses) == 0 && answered <= most) {
    queue().answer(0);
    ++answered;
    bench.turn(1);
  }
  EXPECT_LE(answered, most);
  EXPECT_EQ(bench.counter(Counter::misses), 1U);
}

}  // namespace
}  // namespace akv::gateway::test
