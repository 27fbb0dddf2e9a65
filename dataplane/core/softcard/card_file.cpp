#include "softcard/card_file.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <system_error>

#include "nvme/identify.hpp"

namespace akv::softcard {
namespace {

constexpr std::uint64_t kMinSegments = 8;  // fewer would make one eviction drop too large a part of the card
constexpr std::uint64_t kTargetSegments = 256;
constexpr std::uint64_t kMaxSegmentBytes = std::uint64_t{64} << 20U;
constexpr std::uint64_t kMinValueBytes = 4096;
constexpr std::size_t kBlankBytes = std::size_t{1} << 20U;  // of a device, looked at before it is taken

[[noreturn]] void fail_errno(const std::filesystem::path& path, const char* what) {
  throw std::system_error(errno, std::generic_category(), std::string(what) + " " + path.string());
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw std::runtime_error("file " + path.string() + " " + why);
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

// No number in a file decides how much memory is taken: the layout is that of its capacity, which the command
// line names too.
bool follows_from_capacity(const Superblock& block) {
  if (block.max_value_bytes < kMinValueBytes) return false;
  CardFileSpec wanted;
  wanted.capacity = block.capacity;
  wanted.max_value_bytes = block.max_value_bytes;
  wanted.direct = block.align == kDirectAlign;
  const auto plan = plan_layout(wanted);
  return plan.max_value_bytes == block.max_value_bytes && plan.segment_bytes == block.segment_bytes &&
         plan.segments == block.segments;
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
  plan.align = spec.direct ? kDirectAlign : kRecordAlign;
  const auto need =
      plan.align + 2 * record_bytes(plan.max_value_bytes, plan.align) + tail_bytes(2, plan.align);
  const auto wanted = std::min(spec.capacity / kTargetSegments, kMaxSegmentBytes);
  plan.segment_bytes = round_up(std::max<std::uint64_t>(need, wanted), kDirectAlign);
  plan.segments = static_cast<std::uint32_t>((spec.capacity - kSuperblockBytes) / plan.segment_bytes);
  nvme::set_padded(plan.serial, spec.serial);
  return plan;
}

std::uint64_t default_max_keys(std::uint64_t capacity) noexcept {
  constexpr std::uint64_t least = 65'536;
  constexpr std::uint64_t bytes_a_key = 16'384;
  return std::max(least, capacity / bytes_a_key);
}

SharedBytes allocate_blocks(std::size_t bytes) {
  // Aligned by hand: malloc would cut the rest off, and what comes back could not be taken for another buffer
  // of that size, so that each would take new memory.
  auto* const memory = static_cast<std::byte*>(::operator new(blocks_memory(bytes)));
  void* aligned = memory;
  auto space = blocks_memory(bytes);
  std::align(kDirectAlign, round_up(bytes, kDirectAlign), aligned, space);
  return {static_cast<std::byte*>(aligned), [memory](std::byte*) { ::operator delete(memory); }};
}

CardFile::CardFile(const CardFileSpec& spec) : direct_(spec.direct), faults_(spec.faults) {
  open(spec);
  load(spec, size_of(spec));
}

void CardFile::open(const CardFileSpec& spec) {
  struct stat status{};
  // For a device: refused while it is mounted or used by another driver.
  device_ = ::stat(spec.path.c_str(), &status) == 0 && S_ISBLK(status.st_mode);
  const int flags = O_RDWR | O_CLOEXEC | (device_ ? O_EXCL : O_CREAT) | (direct_ ? O_DIRECT : 0);
  fd_.reset(::open(spec.path.c_str(), flags, S_IRUSR | S_IWUSR));
  if (!fd_ && errno == EINVAL && direct_)
    refuse(spec.path, "is on a file system without direct I/O; leave --direct out or give another path");
  if (!fd_) fail_errno(spec.path, "can't open file");
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0)
    refuse(spec.path, "is in use by another card; give each card its own");
}

std::uint64_t CardFile::size_of(const CardFileSpec& spec) {
  struct stat status{};
  if (::fstat(fd_.get(), &status) != 0) fail_errno(spec.path, "can't stat file");
  if (!device_ && !S_ISREG(status.st_mode)) refuse(spec.path, "is neither a regular file nor a block device");
  if (!device_) return static_cast<std::uint64_t>(status.st_size);
  std::uint64_t size = 0;
  if (::ioctl(fd_.get(), BLKGETSIZE64, &size) != 0) fail_errno(spec.path, "can't ask the size of");
  return size;
}

void CardFile::load(const CardFileSpec& spec, std::uint64_t size) {
  if (size > 0) {
    std::array<std::byte, sizeof(Superblock)> raw{};
    if (!read_raw(0, raw))
      refuse(spec.path, "is too short to be a card's file; remove it or give another path");
    superblock_ = nvme::read_wire<Superblock>(raw);
  }
  // Nothing but zeros: new, or a creation that did not end. The superblock is written last.
  if (size == 0 || (all_zero(nvme::wire_bytes(superblock_)) && blank(size))) {
    create(spec, size);
  } else {
    check(spec, size);
  }
}

void CardFile::create(const CardFileSpec& spec, std::uint64_t size) {
  superblock_ = plan_layout(spec);
  superblock_.salt = random_salt();
  superblock_.crc = superblock_crc(superblock_);
  const auto total = segment_offset(superblock_.segments);
  if (device_ && size < total) {
    refuse(spec.path, "has " + std::to_string(size) + " bytes; give a --capacity of at most that");
  }
  // All space now: a full disk must not surprise a running card.
  if (const int error = device_ ? 0 : ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(total));
      error != 0) {
    errno = error;
    fail_errno(spec.path, "can't reserve the capacity in file");
  }
  if (!write_raw(0, nvme::wire_bytes(superblock_), {})) fail_errno(spec.path, "can't write file");
  sync();
}

// Whether no byte of the file says anything. Other files begin with zeros too, such as images of disks. Of a
// device only the beginning is looked at: partition tables and file systems have their marks there.
bool CardFile::blank(std::uint64_t size) const {
  constexpr std::size_t part_bytes = std::size_t{64} << 10U;
  const auto part = allocate_blocks(part_bytes);
  std::uint64_t at = 0;
  while (at < (device_ ? std::min<std::uint64_t>(kBlankBytes, size) : size)) {
    if (!device_) {
      const auto data = ::lseek(fd_.get(), static_cast<off_t>(at), SEEK_DATA);
      if (data < 0) return errno == ENXIO;  // no more data behind
      at = static_cast<std::uint64_t>(data) / kDirectAlign * kDirectAlign;
    }
    const auto got = ::pread(fd_.get(), part.get(), part_bytes, static_cast<off_t>(at));
    if (got <= 0) return false;
    if (!all_zero({part.get(), static_cast<std::size_t>(got)})) return false;
    at += static_cast<std::uint64_t>(got);
  }
  return true;
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
  if (block.align != (spec.direct ? kDirectAlign : kRecordAlign)) {
    refuse(spec.path, std::string("was made with") + (spec.direct ? "out" : "") +
                          " --direct; serve it so, or remove it");
  }
  if (!follows_from_capacity(block)) {
    refuse(spec.path, "has a layout that does not follow from its capacity; remove it or give another path");
  }
  if (const auto whole = segment_offset(block.segments); size < whole) {
    refuse(spec.path, "has " + std::to_string(size) + " of its " + std::to_string(whole) +
                          " bytes: it was cut; remove it or give another path");
  }
}

bool CardFile::read(std::uint64_t offset, std::span<std::byte> to) const noexcept {
  if (const auto fault = faults_ == nullptr ? std::nullopt : faults_->take(FaultOp::file_read)) {
    errno = fault->error_number;
    if (fault->kind == FaultKind::error) return false;
    faults_->wait(*fault);
  }
  bytes_read_ += to.size();
  return read_raw(offset, to);
}

bool CardFile::read_raw(std::uint64_t offset, std::span<std::byte> to) const noexcept {
  const auto direct = direct_ && (offset % kDirectAlign != 0 || to.size() % kDirectAlign != 0 ||
                                  reinterpret_cast<std::uintptr_t>(to.data()) % kDirectAlign != 0);
  if (direct) {
    const auto begin = offset / kDirectAlign * kDirectAlign;
    const auto end = round_up(offset + to.size(), kDirectAlign);
    try {
      const auto blocks = allocate_blocks(end - begin);
      if (!read_raw(begin, {blocks.get(), end - begin})) return false;
      std::memcpy(to.data(), blocks.get() + (offset - begin), to.size());
      return true;
    } catch (const std::bad_alloc&) {
      errno = ENOMEM;
      return false;
    }
  }
  while (!to.empty()) {
    const auto got = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = EIO;
    if (got <= 0) return false;
    to = to.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

SharedBytes CardFile::read_shared(std::uint64_t offset, std::size_t bytes) const {
  auto blocks = allocate_blocks(bytes);
  if (read(offset, {blocks.get(), direct_ ? round_up(bytes, kDirectAlign) : bytes})) return blocks;
  if (errno == ENOMEM) throw std::bad_alloc();
  return nullptr;
}

bool CardFile::write(std::uint64_t offset, std::span<const std::byte> head,
                     std::span<const std::byte> body) noexcept {
  const auto fault = faults_ == nullptr ? std::nullopt : faults_->take(FaultOp::file_write);
  if (!fault) return write_raw(offset, head, body);
  if (fault->kind == FaultKind::torn) static_cast<void>(write_raw(offset, head, body.first(body.size() / 2)));
  errno = fault->error_number;
  if (fault->kind == FaultKind::error || fault->kind == FaultKind::torn) return false;
  faults_->wait(*fault);
  return write_raw(offset, head, body);
}

bool CardFile::write_all(std::uint64_t offset, std::span<const Piece> pieces) noexcept {
  const auto fault = faults_ == nullptr ? std::nullopt : faults_->take(FaultOp::file_write);
  if (!fault) return write_pieces(offset, pieces);
  if (fault->kind == FaultKind::torn)
    static_cast<void>(write_pieces(offset, pieces.first(pieces.size() / 2)));
  errno = fault->error_number;
  if (fault->kind == FaultKind::error || fault->kind == FaultKind::torn) return false;
  faults_->wait(*fault);
  return write_pieces(offset, pieces);
}

bool CardFile::write_raw(std::uint64_t offset, std::span<const std::byte> head,
                         std::span<const std::byte> body) noexcept {
  if (direct_) {
    const Piece piece{head, body};
    return write_bounced(offset, {&piece, 1});
  }
  std::array<iovec, 2> vectors{iovec{const_cast<std::byte*>(head.data()), head.size()},
                               iovec{const_cast<std::byte*>(body.data()), body.size()}};
  return write_vectors(offset, vectors);
}

bool CardFile::write_pieces(std::uint64_t offset, std::span<const Piece> pieces) noexcept {
  if (direct_) return write_bounced(offset, pieces);
  static constexpr std::array<std::byte, kRecordAlign> zeros{};
  std::array<iovec, 3 * kMostPieces> vectors;
  std::size_t count = 0;
  const auto add = [&](std::span<const std::byte> bytes) {
    if (!bytes.empty()) vectors[count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  };
  for (const Piece& piece : pieces) {
    const auto bytes = piece.head.size() + piece.body.size();
    add(piece.head);
    add(piece.body);
    add(std::span(zeros).first(round_up(bytes, kRecordAlign) - bytes));
  }
  return write_vectors(offset, std::span(vectors).first(count));
}

// Through memory that direct I/O takes; it stays as large as the largest write.
bool CardFile::write_bounced(std::uint64_t offset, std::span<const Piece> pieces) noexcept {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces)
    bytes += round_up(piece.head.size() + piece.body.size(), kDirectAlign);
  if (bytes > bounce_bytes_) {
    try {
      bounce_ = allocate_blocks(bytes);
    } catch (const std::bad_alloc&) {
      errno = ENOMEM;
      return false;
    }
    bounce_bytes_ = bytes;
  }
  std::byte* to = bounce_.get();
  for (const Piece& piece : pieces) {
    const auto filled = std::ranges::copy(piece.body, std::ranges::copy(piece.head, to).out).out;
    to += round_up(piece.head.size() + piece.body.size(), kDirectAlign);
    std::fill(filled, to, std::byte{0});
  }
  iovec whole{bounce_.get(), bytes};
  return write_vectors(offset, {&whole, 1});
}

bool CardFile::write_vectors(std::uint64_t offset, std::span<iovec> vectors) noexcept {
  while (!vectors.empty()) {
    if (vectors.front().iov_len == 0) {
      vectors = vectors.subspan(1);
      continue;
    }
    const auto wrote =
        ::pwritev(fd_.get(), vectors.data(), static_cast<int>(vectors.size()), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    offset += static_cast<std::uint64_t>(wrote);
    auto left = static_cast<std::size_t>(wrote);
    while (left > 0) {
      iovec& first = vectors.front();
      const auto taken = std::min(left, first.iov_len);
      first.iov_base = static_cast<std::byte*>(first.iov_base) + taken;
      first.iov_len -= taken;
      left -= taken;
      if (first.iov_len == 0) vectors = vectors.subspan(1);
    }
  }
  return true;
}

bool CardFile::patch(std::uint64_t offset, std::span<const std::byte> bytes) noexcept {
  if (!direct_) return write(offset, bytes);
  const auto begin = offset / kDirectAlign * kDirectAlign;
  alignas(kDirectAlign) std::array<std::byte, kDirectAlign> block;
  if (!read(begin, block)) return false;
  std::memcpy(block.data() + (offset - begin), bytes.data(), bytes.size());
  return write(begin, block);
}

void CardFile::sync() const {
  if (::fdatasync(fd_.get()) != 0)
    throw std::system_error(errno, std::generic_category(), "can't sync the card's file");
}

}  // namespace akv::softcard
