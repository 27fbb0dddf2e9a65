#include "arena/session_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace akv::arena {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

UniqueFd sealed_memory(std::uint64_t bytes) {
  UniqueFd fd(::memfd_create("akv-session", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) fail("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fail("ftruncate of a session's memory");
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) fail("F_ADD_SEALS");
  return fd;
}

std::span<std::byte> map(int fd, std::uint64_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("mmap of a session's memory");
  return {static_cast<std::byte*>(memory), bytes};
}

}  // namespace

SessionMemory::SessionMemory(Reservation reservation, LeasedTotal total)
    : leases(reservation.bytes(), std::move(total)),
      reservation_(std::move(reservation)),
      fd_(sealed_memory(reservation_.bytes())),
      bytes_(map(fd_.get(), reservation_.bytes())) {}

SessionMemory::~SessionMemory() {
  ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace akv::arena
