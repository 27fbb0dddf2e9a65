// Who waits for the answer to another's GET: what becomes of it when that one fails.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace akv::gateway::test
