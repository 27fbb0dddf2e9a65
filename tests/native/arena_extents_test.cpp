#include "arena/extents.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace akv::arena {
namespace {

TEST(ArenaExtents, GivesAllPagesOnceAndTakesThemBackAsOneRange) {
  Extents extents(10);
  std::vector<std::uint32_t> pages;
  while (const auto page = extents.take(1))
    pages.push_back(*page);
  EXPECT_EQ(pages.size(), 10U);
  EXPECT_EQ(extents.free_pages(), 0U);
  for (const std::uint32_t page : {5U, 3U, 4U, 0U, 9U, 1U, 2U, 8U, 6U, 7U})
    extents.give_back(page, 1);
  EXPECT_EQ(extents.free_ranges(), 1U);
  EXPECT_EQ(extents.take(10), 0U);
}

TEST(ArenaExtents, TakesTheSmallestRangeThatFits) {
  Extents extents(100);
  const auto a = extents.take(10);
  const auto b = extents.take(3);
  const auto c = extents.take(10);
  ASSERT_TRUE(a && b && c);
  extents.give_back(*b, 3);
  EXPECT_EQ(extents.take(3), b);
}

TEST(ArenaExtents, NothingForTooMuchOrFromNothing) {
  Extents extents(4);
  EXPECT_FALSE(extents.take(5).has_value());
  EXPECT_EQ(extents.free_pages(), 4U);
  Extents none(0);
  EXPECT_FALSE(none.take(1).has_value());
  EXPECT_EQ(none.free_ranges(), 0U);
}

// Against a plain model: ranges never overlap, nothing is lost, and neighbours never stay apart.
TEST(ArenaExtents, RandomUseKeepsEveryInvariant) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    constexpr std::uint32_t kPages = 257;
    Extents extents(kPages);
    std::map<std::uint32_t, std::uint32_t> taken;
    for (int step = 0; step < 2000; ++step) {
      if (random() % 2 == 0 || taken.empty()) {
        const auto wanted = 1 + static_cast<std::uint32_t>(random() % 24);
        if (const auto first = extents.take(wanted)) taken.emplace(*first, wanted);
      } else {
        auto victim = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
        extents.give_back(victim->first, victim->second);
        taken.erase(victim);
      }
      std::uint32_t end = 0;
      std::uint32_t used = 0;
      std::size_t gaps = 0;
      for (const auto& [first, pages] : taken) {
        ASSERT_GE(first, end) << "ranges overlap";
        gaps += first > end ? 1U : 0U;
        end = first + pages;
        used += pages;
      }
      gaps += end < kPages ? 1U : 0U;
      ASSERT_LE(end, kPages);
      ASSERT_EQ(extents.free_pages(), kPages - used);
      ASSERT_EQ(extents.free_ranges(), gaps) << "free neighbours were not joined";
    }
  }
}

}  // namespace
}  // namespace akv::arena
