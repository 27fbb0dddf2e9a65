// The pairs of a file, in bytewise order of their keys, in little memory: blocks of up to 127 entries of 32
// bytes under a map with one node for each block.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "nvme/kv.hpp"
#include "softcard/store.hpp"

namespace akv::softcard {

// Where a pair lies, and how often it may still be moved instead of evicted.
struct IndexEntry {
  nvme::KvKey key;
  std::uint8_t chances{0};
  std::uint32_t segment{0};
  std::uint32_t unit{0};  // offset of the record in its segment, in units of kRecordAlign bytes
  std::uint32_t value_bytes{0};

  [[nodiscard]] bool same_place(const IndexEntry& other) const noexcept {
    return segment == other.segment && unit == other.unit;
  }
};
static_assert(sizeof(IndexEntry) == 32);

class KeyIndex {
 public:
  KeyIndex();

  // nullptr: no such key. Good until the next insert or erase.
  [[nodiscard]] IndexEntry* find(const nvme::KvKey& key) noexcept;
  [[nodiscard]] const IndexEntry* find(const nvme::KvKey& key) const noexcept;
  // The key must not be there yet.
  void insert(const IndexEntry& entry);
  void erase(const nvme::KvKey& key) noexcept;
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  // In order, from the first key that is not before `start`, until `visit` says false.
  void walk(const nvme::KvKey& start, const std::function<bool(const IndexEntry&)>& visit) const;
  // Bytes of memory held.
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept;

 private:
  static constexpr std::size_t kBlockEntries = 127;
  struct Block {
    std::size_t count{0};
    std::array<IndexEntry, kBlockEntries> entries;
  };
  // By a key that is not behind the block's first; the first block's is the empty key.
  using Blocks = std::map<nvme::KvKey, std::unique_ptr<Block>, KeyOrder>;

  [[nodiscard]] Blocks::const_iterator block_of(const nvme::KvKey& key) const noexcept;
  [[nodiscard]] static std::size_t place_in(const Block& block, const nvme::KvKey& key) noexcept;
  void split(Block& block);
  void join_neighbours(Blocks::const_iterator block);

  Blocks blocks_;
  std::uint64_t size_{0};
};

}  // namespace akv::softcard
