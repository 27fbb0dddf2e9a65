// Shared mappings of files that another process may shrink. Touching memory behind a file's end raises
// SIGBUS, which would end this process; here it only costs the mapping its content (docs/decisions/0013).
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace akv {

// From the first access that the file can't satisfy, the whole mapping is private memory that begins as
// zeros: every access to it goes on to work, and nothing of it reaches the file any more. So whoever reads a
// mapping must ask broken() afterwards, and use what was read only where it is false.
class GuardedMapping {
 public:
  // Maps `bytes` (>= 1) of the file from `offset` on, shared, for reading and writing. Throws
  // std::system_error when the kernel refuses, or (ENOSPC) when 4,096 mappings are guarded already.
  GuardedMapping(int fd, std::uint64_t offset, std::size_t bytes);
  ~GuardedMapping();
  GuardedMapping(const GuardedMapping&) = delete;
  GuardedMapping& operator=(const GuardedMapping&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  // Some access failed. Any thread may ask.
  [[nodiscard]] bool broken() const noexcept;

 private:
  std::span<std::byte> bytes_;
  std::size_t slot_;
};

// Reads a byte of every page, so that mappings whose file shrank break now. For after a system call that
// answered EFAULT, since the kernel's own accesses raise no signal: it can then be repeated.
void touch_pages(std::span<const iovec> vectors) noexcept;

}  // namespace akv
