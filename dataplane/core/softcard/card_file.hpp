// The file under a file store: opened and locked for one card, created at its full size, read and written
// whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/unique_fd.hpp"
#include "softcard/file_format.hpp"

namespace akv::softcard {

// What the command line asks of the file.
struct CardFileSpec {
  std::filesystem::path path;
  std::string serial;
  std::uint64_t capacity{0};         // bytes
  std::uint32_t max_value_bytes{0};  // wanted; a small capacity lowers it
};

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
  // False on an I/O error or a file that ends early.
  [[nodiscard]] bool read(std::uint64_t offset, std::span<std::byte> to) const noexcept;
  // Header and value in one call; false on an I/O error.
  [[nodiscard]] bool write(std::uint64_t offset, std::span<const std::byte> head,
                           std::span<const std::byte> body = {}) const noexcept;
  // Throws std::system_error.
  void sync() const;

 private:
  void create(const CardFileSpec& spec);
  void check(const CardFileSpec& spec, std::uint64_t size) const;
  [[nodiscard]] bool blank() const;

  UniqueFd fd_;
  Superblock superblock_{};
};

// Segment size and count for a capacity; throws std::runtime_error when the capacity is too small to work
// with.
[[nodiscard]] Superblock plan_layout(const CardFileSpec& spec);

}  // namespace akv::softcard
