#include "arena/cache_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

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

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

UniqueFd make_memfd(std::uint64_t bytes) {
  UniqueFd fd(::memfd_create("akv-cache", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) fail("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fail("ftruncate of a read cache");
  return fd;
}

std::byte* map(std::uint64_t bytes, int fd) {
  const int how = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, how | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) fail("mmap of a read cache");
  return static_cast<std::byte*>(memory);
}

// Mappings that exist stay writable; who maps it, or opens it anew, from now on can only read.
void seal(int fd) {
  constexpr int kSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) fail("F_SEAL_FUTURE_WRITE of a read cache");
}

}  // namespace

CacheMemory::CacheMemory(std::uint64_t bytes, Kind kind) : pages_(page_count(bytes)), free_(pages_) {
  if (pages_ == 0) return;
  if (kind == Kind::lent) fd_ = make_memfd(bytes);
  base_ = map(bytes, fd_.get());
  if (!fd_) return;
  try {
    seal(fd_.get());
  } catch (const std::system_error&) {
    ::munmap(base_, bytes);
    throw;
  }
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
