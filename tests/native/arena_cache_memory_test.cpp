#include <gtest/gtest.h>
#include <sys/mman.h>

#include "arena/cache_memory.hpp"

namespace akv::arena {
namespace {

TEST(ArenaCacheMemory, WhatIsLentIsTheSameMemoryAndOnlyToBeRead) {
  CacheMemory memory(8 * 4096, CacheMemory::Kind::lent);
  ASSERT_GE(memory.fd(), 0);
  void* const other = ::mmap(nullptr, 8 * 4096, PROT_READ, MAP_SHARED, memory.fd(), 0);
  ASSERT_NE(other, MAP_FAILED);
  const auto first = memory.take(2);
  ASSERT_TRUE(first);
  memory.bytes(*first, 8192)[5000] = std::byte{42};
  EXPECT_EQ(static_cast<const std::byte*>(other)[*first * 4096 + 5000], std::byte{42});
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0), MAP_FAILED);
  ::munmap(other, 8 * 4096);
}

TEST(ArenaCacheMemory, OwnMemoryHasNoDescriptorAndGoesBackToTheKernel) {
  CacheMemory memory(4 * 4096);
  EXPECT_EQ(memory.fd(), -1);
  const auto first = memory.take(4);
  memory.bytes(*first, 1)[0] = std::byte{1};
  memory.release(*first, 4);
  EXPECT_EQ(memory.bytes(*first, 1)[0], std::byte{0});
}

TEST(ArenaCacheMemory, NoMemoryIsLentOfNothing) {
  EXPECT_EQ(CacheMemory(0, CacheMemory::Kind::lent).fd(), -1);
}

}  // namespace
}  // namespace akv::arena
