// Keys, values and files for tests of the stores.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "softcard/file_store.hpp"

namespace akv::softcard::test {

namespace fs = std::filesystem;

inline constexpr std::uint64_t kKiB = 1024;

inline nvme::KvKey key_of(const std::string& text) {
  return *nvme::make_kv_key(as_byte_span(text));
}

inline Value value_of(std::size_t size, unsigned seed) {
  auto bytes = allocate_bytes(size);
  std::mt19937 source(seed);
  for (auto& byte : std::span(bytes.get(), size))
    byte = static_cast<std::byte>(source());
  return {.bytes = std::move(bytes), .size = static_cast<std::uint32_t>(size)};
}

inline void expect_value(Store& store, const std::string& key, std::size_t size, unsigned seed) {
  Value got;
  ASSERT_EQ(store.get(key_of(key), got), nvme::kSuccess) << key;
  const auto expected = value_of(size, seed);
  ASSERT_EQ(got.size, size);
  ASSERT_TRUE(size == 0 || std::memcmp(got.bytes.get(), expected.bytes.get(), size) == 0) << key;
}

class Directory {
 public:
  Directory() {
    std::string name = (fs::temp_directory_path() / "softcard-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Directory() { fs::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  [[nodiscard]] fs::path file(const char* name = "card") const { return path_ / name; }

 private:
  fs::path path_;
};

inline CardFileSpec spec(const fs::path& path, std::uint64_t capacity = 1024 * kKiB) {
  return {.path = path, .serial = "L0P0", .capacity = capacity, .max_value_bytes = 16 * kKiB};
}

// Overwrites part of a file.
inline void write_at(const fs::path& path, std::uint64_t offset, std::string_view bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file << bytes;
}

inline std::string read_at(const fs::path& path, std::uint64_t offset, std::size_t size) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  std::string bytes(size, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  return bytes;
}

// With the page cache and past it.
class FileModes : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] CardFileSpec wanted(std::uint64_t capacity = 2048 * kKiB) const {
    auto wanted = spec(directory_.file(), capacity);
    wanted.direct = GetParam();
    wanted.faults = &faults_;
    return wanted;
  }
  void fault(std::string_view words) { faults_.add(parse_fault(words)); }

  // On a disk: memory file systems of older kernels have no direct I/O.
  Directory directory_;
  mutable Faults faults_;
};

}  // namespace akv::softcard::test
