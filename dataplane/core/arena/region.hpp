// Memory of a client that it registered with its session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arena/budget.hpp"
#include "base/guarded_memory.hpp"
#include "base/unique_fd.hpp"

namespace akv::arena {

// Why a descriptor can't be a region; for the client.
struct BadRegion {
  std::string text;
};

// There is no room for another region, whatever its descriptor; for the client.
struct NoRoomForRegion {
  std::string text;
};

// A part of a memfd or of a file in /dev/shm, mapped here as the client has it mapped. The client may shrink
// the file at any time: then the mapping is broken() and its session ends. Kept alive by the session and by
// each batch that refers to it; when the last of them is gone it is unmapped. What is not const belongs to
// the session's worker alone.
class Region {
 public:
  // [offset, offset + length) of the file. Takes over `reservation`, which has `length` bytes. Throws
  // BadRegion or NoRoomForRegion.
  Region(std::uint16_t number, UniqueFd file, std::uint64_t offset, Reservation reservation);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // By which entries name it.
  [[nodiscard]] std::uint16_t number() const noexcept { return number_; }
  // The bytes from `offset` on; nothing when they are not all inside.
  [[nodiscard]] std::optional<std::span<std::byte>> find(std::uint64_t offset,
                                                         std::uint32_t length) const noexcept;
  [[nodiscard]] bool broken() const noexcept { return mapping_.broken(); }

  // Batches that refer to it.
  void pin() noexcept { ++pins_; }
  void unpin() noexcept { --pins_; }
  [[nodiscard]] bool pinned() const noexcept { return pins_ != 0; }

  // Bytes that were answered for, but that a command may still touch: nothing new may name them.
  void quarantine(std::span<const std::byte> bytes) { late_.push_back(bytes); }
  void release_quarantine(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] bool quarantined(std::span<const std::byte> bytes) const noexcept;

 private:
  std::uint16_t number_;
  Reservation reservation_;
  std::uint64_t length_;
  GuardedMapping mapping_;
  std::uint32_t pins_{0};
  std::vector<std::span<const std::byte>> late_;
};

}  // namespace akv::arena
