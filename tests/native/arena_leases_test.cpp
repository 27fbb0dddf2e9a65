#include "arena/leases.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

namespace akv::arena {
namespace {

class ArenaLeases : public testing::Test {
 protected:
  std::vector<std::uint64_t> lease(std::vector<std::uint32_t> lengths) { return leases.lease(lengths); }
  bool free(std::vector<std::uint64_t> offsets) { return leases.free(offsets); }

  LeasedTotal total = std::make_shared<std::atomic<std::uint64_t>>(0);
  Leases leases{10 * kPageBytes, total};
};

TEST_F(ArenaLeases, BlocksArePageAlignedAndApart) {
  const auto offsets = lease({1, 4096, 4097});
  EXPECT_EQ(offsets, (std::vector<std::uint64_t>{0, 4096, 8192}));
  EXPECT_EQ(leases.leased_bytes(), 4 * kPageBytes);
  EXPECT_EQ(total->load(), 4 * kPageBytes);
}

TEST_F(ArenaLeases, LeaseIsAllOrNothing) {
  EXPECT_TRUE(lease({4096, 4096, 9 * 4096}).empty());
  EXPECT_EQ(leases.leased_bytes(), 0U);
  EXPECT_EQ(lease({10 * 4096}).size(), 1U);
  EXPECT_TRUE(lease({1}).empty());
}

TEST_F(ArenaLeases, FreeIsAllOrNothing) {
  const auto offsets = lease({4096, 8192});
  EXPECT_FALSE(free({offsets[0], 4096 * 5}));
  EXPECT_FALSE(free({offsets[0], offsets[0]}));
  EXPECT_FALSE(free({offsets[0], offsets[1] + 4096}));  // within a block
  EXPECT_FALSE(free({offsets[0] + 1}));
  EXPECT_FALSE(free({~std::uint64_t{0}}));
  EXPECT_TRUE(leases.find(offsets[0], 4096).has_value());
  EXPECT_TRUE(free({offsets[1], offsets[0]}));
  EXPECT_FALSE(free({offsets[0]})) << "freed twice";
  EXPECT_EQ(total->load(), 0U);
}

TEST_F(ArenaLeases, FindNeedsAllOfTheRangeInOneBlock) {
  const auto offsets = lease({100, 8192});
  EXPECT_TRUE(leases.find(0, 100).has_value());
  EXPECT_TRUE(leases.find(50, 50).has_value());
  EXPECT_FALSE(leases.find(50, 51).has_value());
  EXPECT_FALSE(leases.find(100, 1).has_value());
  EXPECT_TRUE(leases.find(offsets[1] + 4096, 4096).has_value());
  EXPECT_FALSE(leases.find(offsets[1], 8193).has_value());
  EXPECT_FALSE(leases.find(3 * 4096, 1).has_value());
  EXPECT_FALSE(leases.find(10 * 4096, 1).has_value());
  EXPECT_FALSE(leases.find(~std::uint64_t{0}, ~std::uint32_t{0}).has_value());
}

TEST_F(ArenaLeases, APinnedBlockIsFreeOnlyAfterItsLastPin) {
  const auto offsets = lease({4096});
  const auto block = leases.find(offsets[0], 1);
  ASSERT_TRUE(block.has_value());
  leases.pin(*block);
  leases.pin(*block);
  EXPECT_TRUE(free({offsets[0]}));
  EXPECT_FALSE(leases.find(offsets[0], 1).has_value()) << "a freed block can still be named";
  EXPECT_FALSE(free({offsets[0]}));
  EXPECT_EQ(lease({10 * 4096}).size(), 0U);
  leases.unpin(*block);
  EXPECT_EQ(leases.leased_bytes(), kPageBytes);
  leases.unpin(*block);
  EXPECT_EQ(leases.leased_bytes(), 0U);
  EXPECT_EQ(lease({10 * 4096}).size(), 1U);
}

TEST_F(ArenaLeases, QuarantineIsCounted) {
  const auto offsets = lease({4096});
  const auto block = *leases.find(offsets[0], 1);
  leases.pin(block);
  leases.quarantine(block);
  leases.quarantine(block);
  EXPECT_TRUE(leases.quarantined(block));
  leases.release_quarantine(block);
  EXPECT_TRUE(leases.quarantined(block));
  leases.release_quarantine(block);
  EXPECT_FALSE(leases.quarantined(block));
  leases.unpin(block);
}

TEST_F(ArenaLeases, WhatIsStillLeasedAtTheEndLeavesTheTotal) {
  {
    Leases other(4 * kPageBytes, total);
    const std::array<std::uint32_t, 2> lengths{1, 1};
    EXPECT_EQ(other.lease(lengths).size(), 2U);
    EXPECT_EQ(total->load(), 2 * kPageBytes);
  }
  EXPECT_EQ(total->load(), 0U);
}

TEST_F(ArenaLeases, SizesThatAreNoWholePagesAreRefused) {
  EXPECT_THROW(Leases(4097, total), std::invalid_argument);
  EXPECT_THROW(Leases(std::uint64_t{kPageBytes} << 32U, total), std::invalid_argument);
}

}  // namespace
}  // namespace akv::arena
