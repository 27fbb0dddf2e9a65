#include "arena/s3_fifo.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace akv::arena {
namespace {

// A cache of whole blocks over the policy, as an owner would keep it.
class Cache {
 public:
  explicit Cache(std::uint64_t capacity) : capacity_(capacity), policy_(capacity) {}

  // True for a hit; else the block is in now.
  bool get(unsigned key, std::uint32_t weight = 1) {
    const auto found = in_.find(key);
    if (found != in_.end()) {
      policy_.hit(found->second);
      return true;
    }
    while (policy_.used() + weight > capacity_)
      evict();
    std::uint32_t slot = 0;
    while (owner_.contains(slot))
      ++slot;
    policy_.insert(slot, key, weight);
    in_[key] = slot;
    owner_[slot] = key;
    return false;
  }
  void evict() {
    const auto slot = policy_.evict();
    ASSERT_TRUE(slot.has_value());
    in_.erase(owner_.at(*slot));
    owner_.erase(*slot);
  }
  void erase(unsigned key) {
    policy_.erase(in_.at(key));
    owner_.erase(in_.at(key));
    in_.erase(key);
  }
  [[nodiscard]] bool has(unsigned key) const { return in_.contains(key); }
  [[nodiscard]] const S3Fifo& policy() const { return policy_; }

 private:
  std::uint64_t capacity_;
  S3Fifo policy_;
  std::map<unsigned, std::uint32_t> in_;
  std::map<std::uint32_t, unsigned> owner_;
};

TEST(ArenaS3Fifo, NothingToEvictFromNothing) {
  S3Fifo policy(10);
  EXPECT_FALSE(policy.evict().has_value());
  policy.insert(3, 33, 4);
  EXPECT_EQ(policy.used(), 4U);
  EXPECT_EQ(policy.evict(), 3U);
  EXPECT_FALSE(policy.evict().has_value());
  EXPECT_EQ(policy.used(), 0U);
}

TEST(ArenaS3Fifo, OneScanOfAnyLengthLeavesTheHotBlocks) {
  Cache cache(100);
  for (int round = 0; round < 4; ++round) {
    for (unsigned key = 0; key < 40; ++key)
      cache.get(key);
  }
  for (unsigned key = 1000; key < 21'000; ++key)
    cache.get(key);
  unsigned left = 0;
  for (unsigned key = 0; key < 40; ++key)
    left += cache.has(key) ? 1U : 0U;
  EXPECT_EQ(left, 40U) << "an LRU of this size would have none";
}

TEST(ArenaS3Fifo, ABlockThatComesBackSoonIsTakenForHot) {
  Cache cache(10);
  for (unsigned key = 0; key < 12; ++key)
    cache.get(key);
  ASSERT_FALSE(cache.has(0));
  EXPECT_FALSE(cache.get(0));
  for (unsigned key = 100; key < 200; ++key)
    cache.get(key);
  EXPECT_TRUE(cache.has(0)) << "it was remembered, so that no scan flushes it";
}

TEST(ArenaS3Fifo, BlocksThatAreHotNoMoreLeaveForThoseThatAre) {
  Cache cache(20);
  for (int round = 0; round < 5; ++round) {
    for (unsigned key = 0; key < 15; ++key)
      cache.get(key);
  }
  unsigned hits = 0;
  for (int round = 0; round < 50; ++round) {
    for (unsigned key = 100; key < 115; ++key)
      hits += cache.get(key) ? 1U : 0U;
  }
  EXPECT_GT(hits, 600U);
}

TEST(ArenaS3Fifo, AnErasedBlockIsForgotten) {
  Cache cache(4);
  cache.get(1);
  cache.erase(1);
  EXPECT_EQ(cache.policy().used(), 0U);
  EXPECT_EQ(cache.policy().size(), 0U);
  EXPECT_FALSE(cache.get(1));
}

TEST(ArenaS3Fifo, KeepsAccountOfWeightsWhateverHappens) {
  std::mt19937 random(5);
  for (const std::uint64_t capacity : {16U, 100U, 1000U}) {
    Cache cache(capacity);
    std::map<unsigned, std::uint32_t> weights;
    for (int step = 0; step < 20'000; ++step) {
      const auto key = static_cast<unsigned>(random() % 200);
      const auto fresh = static_cast<std::uint32_t>(1 + random() % 8);
      const std::uint32_t weight = weights.try_emplace(key, fresh).first->second;
      if (random() % 10 == 0 && cache.has(key)) {
        cache.erase(key);
      } else {
        cache.get(key, weight);
        ASSERT_TRUE(cache.has(key));
      }
      std::uint64_t sum = 0;
      std::size_t count = 0;
      for (const auto& [known, each] : weights) {
        sum += cache.has(known) ? each : 0;
        count += cache.has(known) ? 1U : 0U;
      }
      ASSERT_EQ(cache.policy().used(), sum);
      ASSERT_EQ(cache.policy().size(), count);
      ASSERT_LE(sum, capacity);
    }
  }
}

}  // namespace
}  // namespace akv::arena
