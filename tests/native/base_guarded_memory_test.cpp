// Mappings of files that shrink under us.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/guarded_memory.hpp"
#include "base/unique_fd.hpp"

namespace akv {
namespace {

constexpr std::size_t kPage = 4096;

UniqueFd memory_of(std::size_t bytes) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

unsigned sum(std::span<const std::byte> bytes) {
  unsigned total = 0;
  for (const std::byte byte : bytes)
    total += std::to_integer<unsigned>(byte);
  return total;
}

TEST(GuardedMemory, AReadBehindTheEndGivesZerosAndIsTold) {
  const UniqueFd fd = memory_of(8 * kPage);
  const GuardedMapping mapping(fd.get(), kPage, 7 * kPage);
  std::memset(mapping.bytes().data(), 1, mapping.bytes().size());
  EXPECT_EQ(sum(mapping.bytes()), 7 * kPage);
  ASSERT_EQ(::ftruncate(fd.get(), 4 * kPage), 0);
  EXPECT_EQ(sum(mapping.bytes().first(kPage)), kPage);
  EXPECT_FALSE(mapping.broken()) << "nothing that is gone was touched yet";
  EXPECT_EQ(sum(mapping.bytes().last(kPage)), 0U);
  EXPECT_TRUE(mapping.broken());
}

TEST(GuardedMemory, AWriteBehindTheEndGoesNowhere) {
  const UniqueFd fd = memory_of(2 * kPage);
  const GuardedMapping mapping(fd.get(), 0, 2 * kPage);
  ASSERT_EQ(::ftruncate(fd.get(), 0), 0);
  std::memset(mapping.bytes().data(), 7, mapping.bytes().size());
  EXPECT_TRUE(mapping.broken());
  ASSERT_EQ(::ftruncate(fd.get(), 2 * kPage), 0);
  std::byte byte{9};
  ASSERT_EQ(::pread(fd.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, std::byte{0});
}

TEST(GuardedMemory, OneThatBreaksLeavesItsNeighboursAlone) {
  const UniqueFd first = memory_of(kPage);
  const UniqueFd second = memory_of(kPage);
  const GuardedMapping other(first.get(), 0, kPage);
  {
    const GuardedMapping gone(second.get(), 0, kPage);
    ASSERT_EQ(::ftruncate(second.get(), 0), 0);
    EXPECT_EQ(sum(gone.bytes()), 0U);
    EXPECT_TRUE(gone.broken());
  }
  const UniqueFd third = memory_of(kPage);
  const GuardedMapping next(third.get(), 0, kPage);
  EXPECT_FALSE(next.broken()) << "a place that is used again";
  other.bytes()[0] = std::byte{5};
  EXPECT_EQ(sum(other.bytes()), 5U);
  EXPECT_FALSE(other.broken());
}

TEST(GuardedMemory, SystemCallsWorkAgainAfterTheirFault) {
  const UniqueFd fd = memory_of(2 * kPage);
  const GuardedMapping mapping(fd.get(), 0, 2 * kPage);
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd sender(pair[0]);
  const UniqueFd receiver(pair[1]);
  ASSERT_EQ(::ftruncate(fd.get(), 0), 0);
  const iovec vector{mapping.bytes().data(), mapping.bytes().size()};
  ASSERT_EQ(::writev(sender.get(), &vector, 1), -1);
  ASSERT_EQ(errno, EFAULT);
  touch_pages(std::span(&vector, 1));
  EXPECT_TRUE(mapping.broken());
  EXPECT_EQ(::writev(sender.get(), &vector, 1), static_cast<ssize_t>(vector.iov_len));
  EXPECT_EQ(::readv(receiver.get(), &vector, 1), static_cast<ssize_t>(vector.iov_len));
}

// Files shrink and grow while threads read them, and mappings come and go beside.
TEST(GuardedMemory, ManyThreadsAndFilesAtOnce) {
  std::atomic<bool> done{false};
  const auto work = [&done](unsigned number) {
    for (unsigned round = 0; round < 200; ++round) {
      const UniqueFd fd = memory_of(16 * kPage);
      const GuardedMapping mapping(fd.get(), 0, 16 * kPage);
      mapping.bytes()[15 * kPage] = std::byte{1};
      if ((round + number) % 2 == 0) {
        ASSERT_EQ(::ftruncate(fd.get(), kPage), 0);
        EXPECT_EQ(sum(mapping.bytes()), 0U);
        EXPECT_TRUE(mapping.broken());
      } else {
        EXPECT_EQ(sum(mapping.bytes()), 1U);
        EXPECT_FALSE(mapping.broken());
      }
    }
    done = true;
  };
  std::vector<std::jthread> threads;
  for (unsigned number = 0; number < 4; ++number)
    threads.emplace_back(work, number);
  threads.clear();
  EXPECT_TRUE(done);
}

TEST(GuardedMemoryDeathTest, OtherFaultsStillEndTheProcess) {
  const UniqueFd fd = memory_of(kPage);
  const GuardedMapping guarded(fd.get(), 0, kPage);
  const UniqueFd other = memory_of(kPage);
  void* const memory = ::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, other.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(::ftruncate(other.get(), 0), 0);
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile char*>(memory)), "");
  ::munmap(memory, kPage);
}

}  // namespace
}  // namespace akv
