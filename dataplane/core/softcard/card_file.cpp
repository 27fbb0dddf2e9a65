#include "softcard/card_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "nvme/identify.hpp"

namespace akv::softcard {
namespace {

constexpr std::uint64_t kMinSegments = 8;  // fewer would make one eviction drop too large a part of the card
constexpr std::uint64_t kTargetSegments = 64;
constexpr std::uint64_t kMaxSegmentBytes = std::uint64_t{64} << 20U;
constexpr std::uint64_t kMinValueBytes = 4096;

[[noreturn]] void fail_errno(const std::filesystem::path& path, const char* what) {
  throw std::system_error(errno, std::generic_category(), std::string(what) + " " + path.string());
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw std::runtime_error("file " + path.string() + " " + why);
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::uint64_t random_salt() {
  std::uint64_t salt = 0;
  if (::getrandom(&salt, sizeof salt, 0) != static_cast<ssize_t>(sizeof salt)) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return salt;
}

std::uint32_t superblock_crc(const Superblock& block) {
  return crc32c(nvme::wire_bytes(block).first(offsetof(Superblock, crc)));
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

Superblock plan_layout(const CardFileSpec& spec) {
  // A segment must take the longest value twice: once reinserted, once new.
  const auto longest = std::min<std::uint64_t>(spec.max_value_bytes, spec.capacity / (2 * kMinSegments + 2));
  Superblock plan;
  plan.capacity = spec.capacity;
  plan.max_value_bytes = static_cast<std::uint32_t>(longest / kRecordAlign * kRecordAlign);
  if (plan.max_value_bytes < kMinValueBytes) {
    throw std::runtime_error("capacity " + std::to_string(spec.capacity) +
                             " is too small for a card with a file; "
                             "give at least " +
                             std::to_string(kMinValueBytes * (2 * kMinSegments + 2)) + " bytes");
  }
  const auto need = sizeof(SegmentHeader) + 2 * record_bytes(plan.max_value_bytes);
  const auto wanted = std::min(spec.capacity / kTargetSegments, kMaxSegmentBytes);
  plan.segment_bytes = round_up(std::max(need, wanted), 4096);
  plan.segments = static_cast<std::uint32_t>((spec.capacity - kSuperblockBytes) / plan.segment_bytes);
  nvme::set_padded(plan.serial, spec.serial);
  return plan;
}

CardFile::CardFile(const CardFileSpec& spec)
    : fd_(::open(spec.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR)) {
  if (!fd_) fail_errno(spec.path, "can't open file");
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0)
    refuse(spec.path, "is in use by another card; give each card its own");
  struct stat status{};
  if (::fstat(fd_.get(), &status) != 0) fail_errno(spec.path, "can't stat file");
  if (!S_ISREG(status.st_mode)) refuse(spec.path, "is not a regular file");
  if (status.st_size > 0) {
    std::array<std::byte, sizeof(Superblock)> raw{};
    if (!read(0, raw)) refuse(spec.path, "is too short to be a card's file; remove it or give another path");
    superblock_ = nvme::read_wire<Superblock>(raw);
  }
  // Nothing but zeros: a creation that did not end. The superblock is written last.
  if (status.st_size == 0 || (all_zero(nvme::wire_bytes(superblock_)) && blank())) {
    create(spec);
  } else {
    check(spec, static_cast<std::uint64_t>(status.st_size));
  }
}

void CardFile::create(const CardFileSpec& spec) {
  superblock_ = plan_layout(spec);
  superblock_.salt = random_salt();
  superblock_.crc = superblock_crc(superblock_);
  const auto total = segment_offset(superblock_.segments);
  // All space now: a full disk must not surprise a running card.
  if (const int error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(total)); error != 0) {
    errno = error;
    fail_errno(spec.path, "can't reserve the capacity in file");
  }
  if (!write(0, nvme::wire_bytes(superblock_))) fail_errno(spec.path, "can't write file");
  sync();
}

// Whether no byte of the file says anything. Other files begin with zeros too, such as images of disks.
bool CardFile::blank() const {
  std::vector<std::byte> part(std::size_t{64} << 10U);
  off_t at = 0;
  while ((at = ::lseek(fd_.get(), at, SEEK_DATA)) >= 0) {
    const auto got = ::pread(fd_.get(), part.data(), part.size(), at);
    if (got <= 0) return false;
    if (!all_zero(std::span(part).first(static_cast<std::size_t>(got)))) return false;
    at += got;
  }
  return errno == ENXIO;  // no more data behind
}

void CardFile::check(const CardFileSpec& spec, std::uint64_t size) const {
  const auto& block = superblock_;
  if (block.magic != kFileMagic || block.crc != superblock_crc(block)) {
    refuse(spec.path, "is not a card's file; remove it or give another path");
  }
  if (block.version != kFileVersion) {
    refuse(spec.path, "has layout version " + std::to_string(block.version) + ", this program knows " +
                          std::to_string(kFileVersion) + "; remove it or use the program that made it");
  }
  if (nvme::trimmed(block.serial) != spec.serial) {
    refuse(spec.path, "belongs to the card with serial " + std::string(nvme::trimmed(block.serial)) +
                          ", not " + spec.serial + "; give that --serial or another --file");
  }
  if (block.capacity != spec.capacity) {
    refuse(spec.path, "was made with capacity " + std::to_string(block.capacity) + ", not " +
                          std::to_string(spec.capacity) + "; give that --capacity or remove the file");
  }
  if (const auto whole = segment_offset(block.segments); size < whole) {
    refuse(spec.path, "has " + std::to_string(size) + " of its " + std::to_string(whole) +
                          " bytes: it was cut; remove it or give another path");
  }
}

bool CardFile::read(std::uint64_t offset, std::span<std::byte> to) const noexcept {
  while (!to.empty()) {
    const auto got = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to = to.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

bool CardFile::write(std::uint64_t offset, std::span<const std::byte> head,
                     std::span<const std::byte> body) const noexcept {
  while (!head.empty() || !body.empty()) {
    const std::array<iovec, 2> vectors{iovec{const_cast<std::byte*>(head.data()), head.size()},
                                       iovec{const_cast<std::byte*>(body.data()), body.size()}};
    const auto wrote = ::pwritev(fd_.get(), vectors.data(), 2, static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    const auto bytes = static_cast<std::size_t>(wrote);
    const auto of_head = std::min(bytes, head.size());
    head = head.subspan(of_head);
    body = body.subspan(bytes - of_head);
    offset += bytes;
  }
  return true;
}

void CardFile::sync() const {
  if (::fdatasync(fd_.get()) != 0)
    throw std::system_error(errno, std::generic_category(), "can't sync the card's file");
}

}  // namespace akv::softcard
