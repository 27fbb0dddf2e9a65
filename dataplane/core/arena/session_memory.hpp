// Memory that one session shares with its client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "arena/budget.hpp"
#include "arena/leases.hpp"
#include "base/unique_fd.hpp"

namespace akv::arena {

// A memfd, mapped here and by the client, sealed against growing and shrinking so that no client can make our
// accesses fault. Kept alive by the session and by each command that refers to it; when the last of them is
// gone the bytes go back to the budget. Only `leases` is the session's worker's alone.
class SessionMemory {
 public:
  // Takes over `reservation`, whose size (a multiple of the page size) is the region's. Throws
  // std::system_error when the kernel gives no memory.
  SessionMemory(Reservation reservation, LeasedTotal total);
  ~SessionMemory();
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  // For passing to the client once.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  Leases leases;

 private:
  Reservation reservation_;
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

}  // namespace akv::arena
