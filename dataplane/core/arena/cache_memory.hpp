// Memory of a read cache: blocks of whole pages in one mapping that no client can write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "arena/extents.hpp"
#include "base/unique_fd.hpp"

namespace akv::arena {

// Not thread-safe.
class CacheMemory {
 public:
  enum class Kind : std::uint8_t {
    own,   // no client has it
    lent,  // a memfd that clients can map to read it; no page of it can be given back to the kernel
  };

  // `bytes` of addresses (whole pages, at most 8 TiB; may be 0); pages cost memory once they are written.
  // Throws std::system_error when the kernel has no address space, or can't seal what is to be lent.
  explicit CacheMemory(std::uint64_t bytes, Kind kind = Kind::own);
  ~CacheMemory();
  CacheMemory(const CacheMemory&) = delete;
  CacheMemory& operator=(const CacheMemory&) = delete;

  // First page of a free range, as Extents has it.
  [[nodiscard]] std::optional<std::uint32_t> take(std::uint32_t pages) { return free_.take(pages); }
  void give_back(std::uint32_t first, std::uint32_t pages) { free_.give_back(first, pages); }
  [[nodiscard]] std::span<std::byte> bytes(std::uint32_t first, std::size_t length) const noexcept;
  // Gives the memory of these pages back to the kernel; they read as zero then. Only of Kind::own: the seal
  // that keeps clients from writing forbids it to us as well.
  void release(std::uint32_t first, std::uint32_t pages) noexcept;
  // The same for all free pages.
  void release_free() noexcept;

  [[nodiscard]] std::uint32_t pages() const noexcept { return pages_; }
  // For passing to clients; -1 where it is not lent.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  std::uint32_t pages_;
  Extents free_;
  UniqueFd fd_;
  std::byte* base_{nullptr};
};

}  // namespace akv::arena
