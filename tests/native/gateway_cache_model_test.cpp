// The read cache against a model, in random order: never a stale block, never another's.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "gateway_cache_support.hpp"
#include "kv/envelope.hpp"

namespace akv::gateway::test {
namespace {

// Random requests of two sessions on few keys, answered in random order, some late: each GET gives a value
// that the card had at some time between request and reply.
class GatewayCacheModel : public GatewayCache {
 protected:
  struct Asked {
    unsigned key;
    std::size_t since;  // step
  };
  static constexpr unsigned kKeys = 3;
  static constexpr std::uint32_t kSize = 600;

  static Bytes inline_put(unsigned key, unsigned seed, std::uint64_t id) {
    Bytes body = Entries().add(key_of(key), 0, kSize, wire::kRegionInline).body;
    append(body, payload_of(kSize, seed));
    return frame(Opcode::put, body, 1, id);
  }
  static Bytes inline_get(unsigned key, std::uint64_t id) {
    return frame(Opcode::get, Entries().add(key_of(key), 0, kSize, wire::kRegionInline).body, 1, id);
  }
  // What the card has now, by key; empty where it has none.
  std::map<unsigned, Bytes> snapshot() {
    std::map<unsigned, Bytes> all;
    for (const auto& [card_key, value] : queue().values) {
      kv::Envelope envelope;
      EXPECT_EQ(kv::decode(std::span<const std::byte>(value).first<kv::kEnvelopeBytes>(), envelope),
                kv::Mismatch::none);
      for (unsigned key = 0; key < kKeys; ++key) {
        if (std::ranges::equal(key_of(key), envelope.key)) all[key] = {value.begin() + 64, value.end()};
      }
    }
    return all;
  }
  void note() { history_.push_back(snapshot()); }
  bool was(const Asked& get, const Bytes& value) {
    for (std::size_t step = get.since; step < history_.size(); ++step) {
      if (history_[step][get.key] == value) return true;
    }
    return false;
  }
  void take_replies(TestClient& from, std::map<std::uint64_t, Asked>& gets) {
    while (from.receive() && !from.received.empty()) {
      const auto reply = from.reply();
      ASSERT_TRUE(reply);
      const auto get = gets.find(reply->header.request_id);
      if (get == gets.end()) continue;
      const bool hit = reply->status() == FrameStatus::ok && reply->entry(0, 8) == EntryStatus::ok;
      const Bytes value = hit ? Bytes(reply->body.begin() + 8, reply->body.end()) : Bytes();
      // A miss is always allowed where writes were late or failed; a value must have been there.
      if (hit) {
        ASSERT_TRUE(was(get->second, value)) << "stale or wrong block of key " << get->second.key;
      }
      gets.erase(get);
    }
  }
  void card_does_something(std::mt19937& random) {
    if (!queue().late.empty() && random() % 4 == 0) return queue().release_late();
    if (queue().held.empty()) return;
    const std::size_t index = random() % queue().held.size();
    if (random() % 16 == 0) return queue().time_out(index);
    queue().answer(index);
  }

  std::vector<std::map<unsigned, Bytes>> history_;
};

TEST_F(GatewayCacheModel, NoInterleavingGivesAStaleOrAWrongBlock) {
  std::mt19937 random(11);
  TestClient second(bench);
  ASSERT_TRUE(second.hello(0));
  TestClient* const clients[] = {&client, &second};
  std::map<std::uint64_t, Asked> gets[2];
  queue().hold = true;
  std::uint64_t id = 100;
  unsigned seed = 1;
  note();
  for (int step = 0; step < 6000; ++step) {
    const auto who = static_cast<unsigned>(random() % 2);
    const auto key = static_cast<unsigned>(random() % kKeys);
    const auto what = static_cast<unsigned>(random() % 16);
    ++id;
    if (what < 5) {
      gets[who][id] = {key, history_.size() - 1};
      clients[who]->send(inline_get(key, id));
    } else if (what == 5) {
      clients[who]->send(inline_put(key, seed++, id));
    } else if (what == 6) {
      clients[who]->send(frame(Opcode::remove, key_of(key), 1, id));
    } else {
      card_does_something(random);
      note();
    }
    bench.turn(1);
    for (unsigned i = 0; i < 2; ++i) {
      ASSERT_NO_FATAL_FAILURE(take_replies(*clients[i], gets[i]));
    }
  }
  EXPECT_GT(bench.counter(Counter::cache_hits), 100U);
  EXPECT_GT(bench.counter(Counter::gets_shared), 100U);
  EXPECT_GT(bench.counter(Counter::cache_stale), 20U);
}

}  // namespace
}  // namespace akv::gateway::test
