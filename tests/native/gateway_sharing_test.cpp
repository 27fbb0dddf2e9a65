// Who waits for the answer to another's GET: what becomes of it when that one fails.
#include <gtest/gtest.h>

#include <algorithm>

#include "gateway/turns.hpp"
#include "gateway_cache_support.hpp"

namespace akv::gateway::test {
namespace {

// A block of three segments. One client asks the card for it, and another waits for the answer.
class GatewaySharing : public GatewayCache {
 protected:
  explicit GatewaySharing(Limits limits = quick()) : GatewayCache(512U << 10U, limits) {}
  void SetUp() override {
    GatewayCache::SetUp();
    queue().max_value = 4096 + 64;
    ASSERT_EQ(store(1, 1), EntryStatus::ok);
    ASSERT_TRUE(first.hello(0));
    queue().hold = true;
  }
  static Bytes ask_inline(std::uint64_t id) {
    return frame(Opcode::get, Entries().add(key_of(1), 0, kLength, wire::kRegionInline).body, 1, id);
  }
  // `follower` waits for the answer to `leader`, of which the card has the first segment to send.
  void share(TestClient& leader, const Bytes& leads, TestClient& follower, const Bytes& follows) {
    leader.send(leads);
    wait_held(1);
    follower.send(follows);
    bench.turn(5);
    ASSERT_EQ(queue().held.size(), 1U) << "the other one waits";
  }
  void expect_block(const Reply& reply) {
    EXPECT_EQ(reply.entry(0, 8), EntryStatus::ok);
    EXPECT_EQ(content(place, kLength), payload_of(kLength, 1));
  }

  TestClient first{bench};
};

TEST_F(GatewaySharing, IsAnsweredWhenTheFirstIsGoneBetweenSegments) {
  share(first, ask_inline(10), client, request(Opcode::get, 1, place, kLength, 11));
  first.hang_up();
  bench.turn(5);
  let_go();
  const auto reply = client.reply();
  ASSERT_TRUE(reply);
  expect_block(*reply);
  EXPECT_EQ(bench.counter(Counter::miss_unneeded), 1U);
  EXPECT_EQ(bench.counter(Counter::miss_deadline), 0U) << "no card was too slow";
}

// What the first one's client did to it says nothing of the value on the card.
TEST_F(GatewaySharing, IsAnsweredWhenTheFirstOnesClientSpoilsItsBlock) {
  share(client, request(Opcode::get, 1, place, kLength, 10), first, ask_inline(11));
  queue().answer(0);
  wait_held(2);
  memory[place] ^= std::byte{1};
  let_go();
  const auto shared = first.reply();
  ASSERT_TRUE(shared);
  ASSERT_EQ(shared->entry(0, 8), EntryStatus::ok);
  EXPECT_EQ(Bytes(shared->body.begin() + 8, shared->body.end()), payload_of(kLength, 1));
  EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::miss) << "it changed what it reads itself";
}

class GatewaySharingDeadline : public GatewaySharing {
 protected:
  GatewaySharingDeadline() : GatewaySharing(short_deadline()) {}
  static Limits short_deadline() {
    Limits limits = quick();
    limits.io_timeout = 20ms;
    limits.slowest_bytes_a_second = 100'000;
    return limits;
  }
};

// Who names more bytes may wait longer.
TEST_F(GatewaySharingDeadline, IsAnsweredWhenTheFirstOnesDeadlinePasses) {
  queue().depth = 1;
  constexpr std::uint32_t kMuch = 400'000;
  Entries two;
  two.add(key_of(1), place, kLength).add(key_of(2), alloc(kMuch), kMuch);
  share(first, ask_inline(10), client, frame(Opcode::get, two.body, 2, 11));
  queue().answer(0);
  // Its other segments find no room in the card's queue.
  ASSERT_TRUE(bench.turn_until([&] { return bench.counter(Counter::miss_deadline) >= 1; }));
  let_go();
  EXPECT_EQ(first.reply()->entry(0, 8), EntryStatus::miss);
  const auto reply = client.reply();
  ASSERT_TRUE(reply);
  expect_block(*reply);
}

// Many wait for one large block, while the card's commands are few.
class GatewaySharingMuch : public GatewayCache {
 protected:
  GatewaySharingMuch() : GatewayCache(512U << 10U, few_commands()) {}
  static Limits few_commands() {
    Limits limits;
    limits.tick = 1h;  // none comes between
    limits.card_commands = 4;
    return limits;
  }
  // The card holds the question of `leader`.
  void many_wait() {
    large = alloc(kLarge);
    fill(large, payload_of(kLarge, 1));
    ASSERT_EQ(put(1, large, kLarge), EntryStatus::ok);
    fill(large, Bytes(kLarge));
    ASSERT_TRUE(leader.hello(0));
    queue().hold = true;
    leader.send(frame(Opcode::get, Entries().add(key_of(1), 0, kLarge, wire::kRegionInline).body, 1, 10));
    wait_held(1);
    Entries entries;
    for (unsigned i = 0; i < kMany; ++i)
      entries.add(key_of(1), large, kLarge);
    client.send(frame(Opcode::get, entries.body, kMany, 11));
    bench.turn(5);
    ASSERT_EQ(queue().held.size(), 1U);
  }
  [[nodiscard]] std::uint64_t shared() const { return bench.counter(Counter::gets_shared); }

  static constexpr std::uint32_t kLarge = 60'000;
  static constexpr unsigned kMany = 60;
  TestClient leader{bench};
  std::uint64_t large{0};
};

TEST_F(GatewaySharingMuch, IsCopiedInParts) {
  many_wait();
  queue().answer(0);
  std::uint64_t most = 0;
  while (shared() < kMany) {
    const std::uint64_t before = shared();
    ASSERT_TRUE(bench.turn_until([&] { return shared() > before; }));
    most = std::max(most, shared() - before);
  }
  // A turn of the reactor looks at its timers as well as at its sockets.
  constexpr std::uint64_t kPart = (1U << 20U) + kLarge;
  EXPECT_LE(most * kLarge, 2 * kPart) << "other sockets have their turn between";
  const auto answer = leader.reply();
  ASSERT_TRUE(answer);
  EXPECT_EQ(Bytes(answer->body.begin() + 8, answer->body.end()), payload_of(kLarge, 1));
  const auto reply = client.reply();
  ASSERT_TRUE(reply);
  for (unsigned i = 0; i < kMany; ++i)
    EXPECT_EQ(reply->entry(i, 8), EntryStatus::ok);
  EXPECT_EQ(content(large, kLarge), payload_of(kLarge, 1));
  EXPECT_TRUE(bench.worker.idle());
}

TEST_F(GatewaySharingMuch, IsChargedToNobodyElse) {
  TestClient other(bench);
  ASSERT_TRUE(other.hello(0, "other"));
  Entries stored;
  stored.add(key_of(5), 0, 100, wire::kRegionInline);
  append(stored.body, payload_of(100, 5));
  ASSERT_EQ(other.call(frame(Opcode::put, stored.body, 1, 2))->entry(0, 4), EntryStatus::ok);
  const Entries cached = Entries().add(key_of(5), 0, 100, wire::kRegionInline);
  ASSERT_EQ(other.call(frame(Opcode::get, cached.body, 1, 3))->entry(0, 8), EntryStatus::ok);

  many_wait();
  constexpr unsigned kInLine = 4096;
  Bytes keys;
  for (unsigned i = 0; i < kInLine; ++i)
    append(keys, key_of(100 + i));
  client.send(frame(Opcode::exists, keys, kInLine, 12));
  wait_held(few_commands().card_commands);
  queue().answer(0);
  ASSERT_TRUE(bench.turn_until([this] { return shared() == kMany; }));
  ASSERT_TRUE(client.reply());

  Entries two = cached;
  two.add(key_of(5), 0, 100, wire::kRegionInline);
  other.send(frame(Opcode::get, two.body, 2, 4));
  bench.turn(5);
  // Commands that are with the card already, and one quantum of the other namespace.
  const unsigned most = few_commands().card_commands + Turns::kQuantum / 4096 + 1;
  unsigned answered = 0;
  while (other.received.empty() && answered <= most) {
    queue().answer(0);
    ++answered;
    bench.turn(2);
    other.receive();
  }
  EXPECT_LE(answered, most);
  let_go();
}

}  // namespace
}  // namespace akv::gateway::test
