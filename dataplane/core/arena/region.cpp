#include "arena/region.hpp"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "arena/leases.hpp"

namespace akv::arena {
namespace {

// Only memory: a page of a file on a disk, a network or a FUSE server can take as long as its owner likes,
// and it is a worker who would wait for it.
std::uint64_t page_bytes(int fd, std::uint64_t end) {
  struct stat info{};
  struct statfs system{};
  if (::fstat(fd, &info) != 0 || ::fstatfs(fd, &system) != 0)
    throw BadRegion{"the descriptor can't be looked at"};
  const bool huge = system.f_type == HUGETLBFS_MAGIC;
  if (!S_ISREG(info.st_mode) || (!huge && system.f_type != TMPFS_MAGIC)) {
    throw BadRegion{"the descriptor is neither a memfd nor a file in /dev/shm or hugetlbfs"};
  }
  if (static_cast<std::uint64_t>(info.st_size) < end) {
    throw BadRegion{"the file has " + std::to_string(info.st_size) + " bytes, the region ends at " +
                    std::to_string(end)};
  }
  return huge ? static_cast<std::uint64_t>(info.st_blksize) : kPageBytes;
}

GuardedMapping map(int fd, std::uint64_t offset, std::uint64_t length) {
  if (length == 0 || offset > ~length) throw BadRegion{"the region's offset and length make no range"};
  const std::uint64_t page = page_bytes(fd, offset + length);
  if (offset % page != 0) throw BadRegion{"the region's offset is no multiple of " + std::to_string(page)};
  try {
    return GuardedMapping(fd, offset, (length + page - 1) / page * page);
  } catch (const std::system_error& failure) {
    // Mappings or address space ran out, which says nothing about the file.
    const int error = failure.code().value();
    if (error == ENOSPC || error == ENOMEM)
      throw NoRoomForRegion{"the gateway has no room for another region"};
    throw BadRegion{"the file can't be mapped for reading and writing: " + failure.code().message()};
  }
}

}  // namespace

Region::Region(std::uint16_t number, UniqueFd file, std::uint64_t offset, Reservation reservation)
    : number_(number),
      reservation_(std::move(reservation)),
      length_(reservation_.bytes()),
      mapping_(map(file.get(), offset, length_)) {}

std::optional<std::span<std::byte>> Region::find(std::uint64_t offset, std::uint32_t length) const noexcept {
  if (offset > length_ || length > length_ - offset) return std::nullopt;
  return mapping_.bytes().subspan(offset, length);
}

void Region::release_quarantine(std::span<const std::byte> bytes) noexcept {
  const auto same = [bytes](const auto& late) {
    return late.data() == bytes.data() && late.size() == bytes.size();
  };
  const auto found = std::ranges::find_if(late_, same);
  if (found != late_.end()) late_.erase(found);
}

bool Region::quarantined(std::span<const std::byte> bytes) const noexcept {
  return std::ranges::any_of(late_, [bytes](const auto& late) {
    return bytes.data() < late.data() + late.size() && late.data() < bytes.data() + bytes.size();
  });
}

}  // namespace akv::arena
