#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "arena/budget.hpp"
#include "arena/session_memory.hpp"

namespace akv::arena {
namespace {

LeasedTotal no_leases() {
  return std::make_shared<std::atomic<std::uint64_t>>(0);
}

TEST(ArenaBudget, GrantsUpToItsLimitAndTakesBack) {
  const auto budget = Budget::make(10'000);
  {
    const auto first = budget->take_up_to(6000, 4096);
    EXPECT_EQ(first.bytes(), 4096U);
    auto second = budget->take_up_to(~std::uint64_t{0}, 4096);
    EXPECT_EQ(second.bytes(), 4096U);
    EXPECT_FALSE(budget->take_up_to(5000, 4096));
    EXPECT_FALSE(budget->take(4096));
    const Reservation moved = std::move(second);
    EXPECT_EQ(budget->used(), 8192U);
  }
  EXPECT_EQ(budget->used(), 0U);
  EXPECT_FALSE(budget->take(10'001));
  EXPECT_TRUE(budget->take(10'000));
  EXPECT_FALSE(budget->take(0));
}

TEST(ArenaBudget, IsNeverOverdrawnByManyThreads) {
  const auto budget = Budget::make(1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&budget] {
      for (int round = 0; round < 2000; ++round) {
        const auto taken = budget->take_up_to(400, 1);
        EXPECT_LE(budget->used(), 1000U);
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(budget->used(), 0U);
}

TEST(ArenaSessionMemory, IsSharedByDescriptorAndSealed) {
  const auto budget = Budget::make(1U << 20U);
  const SessionMemory memory(budget->take(8192), no_leases());
  ASSERT_EQ(memory.bytes().size(), 8192U);
  void* const other = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0);
  ASSERT_NE(other, MAP_FAILED);
  memory.bytes()[5000] = std::byte{42};
  EXPECT_EQ(static_cast<std::byte*>(other)[5000], std::byte{42});
  ::munmap(other, 8192);

  EXPECT_EQ(::ftruncate(memory.fd(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(memory.fd(), 16'384), -1);
  EXPECT_EQ(::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(ArenaSessionMemory, ItsBytesGoBackToTheBudget) {
  const auto budget = Budget::make(8192);
  {
    const SessionMemory memory(budget->take(8192), no_leases());
    EXPECT_FALSE(budget->take(1));
  }
  EXPECT_EQ(budget->used(), 0U);
}

}  // namespace
}  // namespace akv::arena
