// Lent copies under random interleavings of two sessions.
#include <map>
#include <random>
#include <set>

#include "gateway_borrow_support.hpp"

namespace akv::gateway::test {
namespace {

// Two sessions, random requests on more keys than the cache holds, answered in random order: what is lent is
// the present value, and no byte of it changes until it is returned.
class GatewayBorrowModel : public GatewayBorrow {
 protected:
  struct Held {
    Borrowed block;
    Bytes value;
  };
  static constexpr unsigned kKeys = 40;
  static constexpr std::uint32_t kSize = 20'000;

  void SetUp() override {
    GatewayBorrow::SetUp();
    client.hang_up();
    for (auto& session : sessions_)
      open(session);
  }
  void TearDown() override {
    sessions_[0].reset();
    sessions_[1].reset();
    GatewayBorrow::TearDown();
    EXPECT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() == 0; }));
    EXPECT_EQ(borrowed_bytes(), 0U);
  }
  void open(std::unique_ptr<TestClient>& session) {
    session = std::make_unique<TestClient>(bench);
    ASSERT_TRUE(session->hello(4096, "default", wire::kFeatureBorrowing));
    ASSERT_TRUE(session->cache_fd);
  }
  // Inline requests: what a client's own memory has does not matter here.
  void put_value(TestClient& from, unsigned key, unsigned seed) {
    Bytes body = Entries().add(key_of(key), 0, kSize, wire::kRegionInline).body;
    append(body, payload_of(kSize, seed));
    ASSERT_EQ(from.call(frame(Opcode::put, body, 1, 5))->entry(0, 4), EntryStatus::ok);
    value_[key] = payload_of(kSize, seed);
  }
  void get_value(TestClient& from, unsigned key) {
    const Bytes body = Entries().add(key_of(key), 0, kSize, wire::kRegionInline).body;
    const auto reply = from.call(frame(Opcode::get, body, 1, 5));
    ASSERT_EQ(reply->entry(0, 8) == EntryStatus::ok, value_.contains(key));
  }
  void lend(unsigned who, unsigned key) {
    const Borrowed block = borrow(*sessions_[who], {key}).front();
    if (block.status != EntryStatus::ok) return;
    ASSERT_TRUE(value_.contains(key)) << "a deleted block was lent";
    ASSERT_TRUE(view->is(block, value_[key])) << "not the present value of key " << key;
    held_[who].push_back({block, value_[key]});
  }
  void take_back(unsigned who, std::size_t index) {
    auto& held = held_[who];
    if (held.empty()) return;
    const auto at = held.begin() + static_cast<long>(index % held.size());
    ASSERT_EQ(give_back(*sessions_[who], {at->block.offset}), FrameStatus::ok);
    held.erase(at);
  }
  void end_session(unsigned who) {
    const auto before = bench.shared.sessions.load();
    sessions_[who]->hang_up();
    ASSERT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() < before; }));
    held_[who].clear();
    open(sessions_[who]);
  }
  void check_held() {
    std::set<std::uint64_t> places;
    for (const auto& held : held_) {
      for (const Held& one : held) {
        ASSERT_TRUE(view->is(one.block, one.value)) << "a lent block changed";
        places.insert(one.block.offset);
      }
    }
    ASSERT_EQ(borrowed_bytes(), places.size() * ((kSize + 4095) / 4096 * 4096));
    ASSERT_LE(bench.shared.cache.held->load(), kCache);
  }

  std::unique_ptr<TestClient> sessions_[2];
  std::vector<Held> held_[2];
  std::map<unsigned, Bytes> value_;  // of the card, by key
};

TEST_F(GatewayBorrowModel, NoInterleavingChangesALentBlock) {
  std::mt19937 random(7);
  unsigned seed = 1;
  for (int step = 0; step < 3000; ++step) {
    const auto who = static_cast<unsigned>(random() % 2);
    const auto key = static_cast<unsigned>(random() % kKeys);
    const auto what = random() % 64;
    ASSERT_NO_FATAL_FAILURE({
      if (what < 12) put_value(*sessions_[who], key, seed++);
      if (what >= 12 && what < 32) get_value(*sessions_[who], key);
      if (what >= 32 && what < 50) lend(who, key);
      if (what >= 50 && what < 60) take_back(who, random());
      if (what == 60) end_session(who);
    });
    if (what > 60) {
      ASSERT_EQ(sessions_[who]->call(frame(Opcode::remove, key_of(key), 1, 6))->entry(0, 4), EntryStatus::ok);
      value_.erase(key);
    }
    ASSERT_NO_FATAL_FAILURE(check_held());
  }
  EXPECT_GT(bench.counter(Counter::borrowed), 200U);
  EXPECT_GT(bench.counter(Counter::cache_evictions), 20U);
  EXPECT_GT(bench.counter(Counter::cache_stale), 20U);
}

}  // namespace
}  // namespace akv::gateway::test
