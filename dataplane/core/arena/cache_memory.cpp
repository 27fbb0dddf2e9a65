#include "arena/cache_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "arena/leases.hpp"

namespace akv::arena {
namespace {

std::uint32_t page_count(std::uint64_t bytes) {
  const std::uint64_t pages = bytes / kPageBytes;
  if (bytes % kPageBytes != 0 || pages >= std::uint64_t{kNoBlock}) {
    throw std::invalid_argument("a read cache is a whole number of pages, at most 8 TiB");
  }
  return static_cast<std::uint32_t>(pages);
}

}  // namespace

CacheMemory::CacheMemory(std::uint64_t bytes) : pages_(page_count(bytes)), free_(pages_) {
  if (pages_ == 0) return;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of a read cache");
  base_ = static_cast<std::byte*>(memory);
}

CacheMemory::~CacheMemory() {
  if (base_ != nullptr) ::munmap(base_, std::size_t{pages_} * kPageBytes);
}

std::span<std::byte> CacheMemory::bytes(std::uint32_t first, std::size_t length) const noexcept {
  return {base_ + std::size_t{first} * kPageBytes, length};
}

void CacheMemory::release(std::uint32_t first, std::uint32_t pages) noexcept {
  // Can only fail for ranges that are not mapped.
  ::madvise(base_ + std::size_t{first} * kPageBytes, std::size_t{pages} * kPageBytes, MADV_DONTNEED);
}

void CacheMemory::release_free() noexcept {
  free_.for_each_free([this](std::uint32_t first, std::uint32_t pages) { release(first, pages); });
}

}  // namespace akv::arena
