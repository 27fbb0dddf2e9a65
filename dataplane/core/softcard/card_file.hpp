// The file or block device under a file store: opened and locked for one card, created at its full size, read
// and written with or without the page cache.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/unique_fd.hpp"
#include "softcard/faults.hpp"
#include "softcard/file_format.hpp"
#include "softcard/value.hpp"

namespace akv::softcard {

// What the command line asks of the file.
struct CardFileSpec {
  std::filesystem::path path;
  std::string serial;
  std::uint64_t capacity{0};         // bytes
  std::uint32_t max_value_bytes{0};  // wanted; a small capacity lowers it
  std::uint64_t max_keys{0};         // 0: default_max_keys() of the capacity
  bool direct{false};                // past the page cache (O_DIRECT)
  Faults* faults{nullptr};           // those of file_read and file_write strike here
};

// Reads from any thread; writes from one at a time.
class CardFile {
 public:
  // Opens, or creates with mode 0600 and all its space reserved. Throws std::runtime_error when the file is
  // in use, belongs to another card, has another capacity or is no card file; std::system_error on I/O
  // errors.
  explicit CardFile(const CardFileSpec& spec);

  [[nodiscard]] const Superblock& superblock() const noexcept { return superblock_; }
  [[nodiscard]] std::uint64_t segment_offset(std::uint32_t segment) const noexcept {
    return kSuperblockBytes + segment * superblock_.segment_bytes;
  }
  // False, with errno, on an I/O error or a file that ends early.
  [[nodiscard]] bool read(std::uint64_t offset, std::span<std::byte> to) const noexcept;
  // Bytes from `offset`, a multiple of the alignment, in memory of their own, straight from the medium; null
  // as read() says false. Throws std::bad_alloc, also where it is the system that has no memory for the read.
  [[nodiscard]] SharedBytes read_shared(std::uint64_t offset, std::size_t bytes) const;
  // Header and value from `offset`, a multiple of the alignment; what is left of the last aligned block is
  // undefined. False on an I/O error.
  [[nodiscard]] bool write(std::uint64_t offset, std::span<const std::byte> head,
                           std::span<const std::byte> body = {}) noexcept;
  struct Piece {
    std::span<const std::byte> head;
    std::span<const std::byte> body;
  };
  static constexpr std::size_t kMostPieces = 256;
  // Side by side from `offset`, in one write: each begins at a multiple of the alignment, and zeros go up to
  // the next one. At most kMostPieces. False on an I/O error; any of them may be there all the same.
  [[nodiscard]] bool write_all(std::uint64_t offset, std::span<const Piece> pieces) noexcept;
  // A few bytes anywhere within one block of 4,096 bytes; the others stay.
  [[nodiscard]] bool patch(std::uint64_t offset, std::span<const std::byte> bytes) noexcept;
  // Throws std::system_error.
  void sync() const;

  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return bytes_read_; }

 private:
  void open(const CardFileSpec& spec);
  [[nodiscard]] std::uint64_t size_of(const CardFileSpec& spec);
  void load(const CardFileSpec& spec, std::uint64_t size);
  void create(const CardFileSpec& spec, std::uint64_t size);
  void check(const CardFileSpec& spec, std::uint64_t size) const;
  [[nodiscard]] bool blank(std::uint64_t size) const;
  [[nodiscard]] bool read_raw(std::uint64_t offset, std::span<std::byte> to) const noexcept;
  [[nodiscard]] bool write_raw(std::uint64_t offset, std::span<const std::byte> head,
                               std::span<const std::byte> body) noexcept;
  [[nodiscard]] bool write_pieces(std::uint64_t offset, std::span<const Piece> pieces) noexcept;
  [[nodiscard]] bool write_bounced(std::uint64_t offset, std::span<const Piece> pieces) noexcept;
  [[nodiscard]] bool write_vectors(std::uint64_t offset, std::span<iovec> vectors) noexcept;

  UniqueFd fd_;
  bool direct_{false};
  bool device_{false};
  Faults* faults_{nullptr};
  Superblock superblock_{};
  SharedBytes bounce_;  // of direct writes
  std::size_t bounce_bytes_{0};
  mutable std::atomic<std::uint64_t> bytes_read_{0};
};

// Segment size and count for a capacity; throws std::runtime_error when the capacity is too small to work
// with.
[[nodiscard]] Superblock plan_layout(const CardFileSpec& spec);

// A pair takes memory however short its value is: one for each 16 KiB of the capacity, and not less than
// 65,536.
[[nodiscard]] std::uint64_t default_max_keys(std::uint64_t capacity) noexcept;

// Uninitialised memory that direct I/O takes, at least `bytes`, in whole blocks. Throws std::bad_alloc.
[[nodiscard]] SharedBytes allocate_blocks(std::size_t bytes);
// What that takes.
[[nodiscard]] constexpr std::size_t blocks_memory(std::size_t bytes) noexcept {
  return round_up(bytes, kDirectAlign) + kDirectAlign;
}

}  // namespace akv::softcard
