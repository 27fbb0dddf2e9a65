#include "softcard/key_index.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace akv::softcard {
namespace {

// Neighbours that fill no more than this become one block: room is left for the next inserts.
constexpr std::size_t kJoinBelow = 96;
// Of a node of the map beside its block: colour, three pointers, key, pointer, and malloc's share.
constexpr std::uint64_t kNodeBytes = 80;

}  // namespace

KeyIndex::KeyIndex() {
  blocks_.emplace(nvme::KvKey{}, std::make_unique<Block>());
}

KeyIndex::Blocks::const_iterator KeyIndex::block_of(const nvme::KvKey& key) const noexcept {
  return std::prev(blocks_.upper_bound(key));
}

std::size_t KeyIndex::place_in(const Block& block, const nvme::KvKey& key) noexcept {
  const auto begin = block.entries.begin();
  const auto end = begin + static_cast<std::ptrdiff_t>(block.count);
  const auto before = [](const IndexEntry& entry, const nvme::KvKey& wanted) {
    return KeyOrder{}(entry.key, wanted);
  };
  return static_cast<std::size_t>(std::lower_bound(begin, end, key, before) - begin);
}

const IndexEntry* KeyIndex::find(const nvme::KvKey& key) const noexcept {
  const Block& block = *block_of(key)->second;
  const auto at = place_in(block, key);
  return at < block.count && block.entries[at].key == key ? &block.entries[at] : nullptr;
}

IndexEntry* KeyIndex::find(const nvme::KvKey& key) noexcept {
  return const_cast<IndexEntry*>(std::as_const(*this).find(key));
}

void KeyIndex::insert(const IndexEntry& entry) {
  if (auto& full = *block_of(entry.key)->second; full.count == kBlockEntries) split(full);
  Block& block = *block_of(entry.key)->second;
  const auto at = block.entries.begin() + static_cast<std::ptrdiff_t>(place_in(block, entry.key));
  const auto end = block.entries.begin() + static_cast<std::ptrdiff_t>(block.count);
  std::move_backward(at, end, end + 1);
  *at = entry;
  ++block.count;
  ++size_;
}

void KeyIndex::split(Block& block) {
  auto upper = std::make_unique<Block>();
  const auto half = block.count / 2;
  upper->count = block.count - half;
  std::copy_n(block.entries.begin() + static_cast<std::ptrdiff_t>(half), upper->count,
              upper->entries.begin());
  const auto first = upper->entries[0].key;
  blocks_.emplace(first, std::move(upper));
  block.count = half;
}

void KeyIndex::erase(const nvme::KvKey& key) noexcept {
  const auto found = block_of(key);
  Block& block = *found->second;
  const auto at = place_in(block, key);
  if (at == block.count || block.entries[at].key != key) return;
  const auto gone = block.entries.begin() + static_cast<std::ptrdiff_t>(at);
  std::move(gone + 1, block.entries.begin() + static_cast<std::ptrdiff_t>(block.count), gone);
  --block.count;
  --size_;
  join_neighbours(found);
}

void KeyIndex::join_neighbours(Blocks::const_iterator block) {
  if (block != blocks_.begin() && block->second->count + std::prev(block)->second->count <= kJoinBelow)
    --block;
  const auto next = std::next(block);
  if (next == blocks_.end()) return;
  Block& lower = *block->second;
  const Block& upper = *next->second;
  if (lower.count + upper.count > kJoinBelow) return;
  std::copy_n(upper.entries.begin(), upper.count,
              lower.entries.begin() + static_cast<std::ptrdiff_t>(lower.count));
  lower.count += upper.count;
  blocks_.erase(next);
}

void KeyIndex::walk(const nvme::KvKey& start, const std::function<bool(const IndexEntry&)>& visit) const {
  auto block = block_of(start);
  auto at = place_in(*block->second, start);
  for (; block != blocks_.end(); ++block, at = 0) {
    for (; at < block->second->count; ++at) {
      if (!visit(block->second->entries[at])) return;
    }
  }
}

std::uint64_t KeyIndex::memory_bytes() const noexcept {
  return blocks_.size() * (sizeof(Block) + kNodeBytes);
}

}  // namespace akv::softcard
