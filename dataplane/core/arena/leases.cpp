#include "arena/leases.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace akv::arena {
namespace {

std::uint32_t page_count(std::uint64_t bytes) {
  const std::uint64_t pages = bytes / kPageBytes;
  if (bytes % kPageBytes != 0 || pages >= std::uint64_t{kNoBlock}) {
    throw std::invalid_argument("a session's memory is a whole number of pages, at most 8 TiB");
  }
  return static_cast<std::uint32_t>(pages);
}

std::uint32_t pages_for(std::uint32_t length) noexcept {
  return static_cast<std::uint32_t>((std::uint64_t{length} + kPageBytes - 1) / kPageBytes);
}

}  // namespace

Leases::Leases(std::uint64_t bytes, LeasedTotal total)
    : pages_(page_count(bytes)), total_(std::move(total)), extents_(pages_), owner_(pages_, kNoBlock) {}

Leases::~Leases() {
  total_->fetch_sub(leased_bytes(), std::memory_order_relaxed);
}

std::vector<std::uint64_t> Leases::lease(std::span<const std::uint32_t> lengths) {
  std::vector<std::uint64_t> offsets;
  offsets.reserve(lengths.size());
  for (const std::uint32_t length : lengths) {
    const auto first = extents_.take(pages_for(length));
    if (!first) {
      for (const std::uint64_t offset : offsets)
        give_back(*starting_at(offset));
      return {};
    }
    offsets.push_back(take(*first, length));
  }
  return offsets;
}

std::uint64_t Leases::take(std::uint32_t first_page, std::uint32_t length) {
  BlockId id = 0;
  if (unused_.empty()) {
    id = static_cast<BlockId>(blocks_.size());
    blocks_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  const std::uint32_t pages = pages_for(length);
  blocks_[id] = {.first_page = first_page, .pages = pages, .length = length};
  std::fill_n(owner_.begin() + first_page, pages, id);
  total_->fetch_add(std::uint64_t{pages} * kPageBytes, std::memory_order_relaxed);
  return std::uint64_t{first_page} * kPageBytes;
}

bool Leases::free(std::span<const std::uint64_t> offsets) {
  if (!mark_freed(offsets)) return false;
  for (const std::uint64_t offset : offsets) {
    const BlockId id = owner_[offset / kPageBytes];
    if (blocks_[id].pins == 0) give_back(id);
  }
  return true;
}

bool Leases::mark_freed(std::span<const std::uint64_t> offsets) {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const auto id = starting_at(offsets[i]);
    if (!id) {
      // Takes back the marks of those before it; none of them was marked earlier, or it would not be found.
      for (const std::uint64_t done : offsets.first(i))
        blocks_[owner_[done / kPageBytes]].freed = false;
      return false;
    }
    blocks_[*id].freed = true;
  }
  return true;
}

std::optional<BlockId> Leases::starting_at(std::uint64_t offset) const noexcept {
  if (offset % kPageBytes != 0 || offset / kPageBytes >= pages_) return std::nullopt;
  const BlockId id = owner_[offset / kPageBytes];
  if (id == kNoBlock || blocks_[id].freed) return std::nullopt;
  if (std::uint64_t{blocks_[id].first_page} * kPageBytes != offset) return std::nullopt;
  return id;
}

std::optional<BlockId> Leases::find(std::uint64_t offset, std::uint32_t length) const noexcept {
  const std::uint64_t page = offset / kPageBytes;
  if (page >= pages_ || owner_[page] == kNoBlock) return std::nullopt;
  const Block& block = blocks_[owner_[page]];
  const std::uint64_t within = offset - std::uint64_t{block.first_page} * kPageBytes;
  if (block.freed || within + length > block.length) return std::nullopt;
  return owner_[page];
}

void Leases::pin(BlockId block) noexcept {
  ++blocks_[block].pins;
}

void Leases::unpin(BlockId block) {
  Block& entry = blocks_[block];
  if (--entry.pins == 0 && entry.freed) give_back(block);
}

void Leases::quarantine(BlockId block) noexcept {
  ++blocks_[block].quarantines;
}

void Leases::release_quarantine(BlockId block) noexcept {
  --blocks_[block].quarantines;
}

bool Leases::quarantined(BlockId block) const noexcept {
  return blocks_[block].quarantines != 0;
}

std::uint64_t Leases::leased_bytes() const noexcept {
  return std::uint64_t{pages_ - extents_.free_pages()} * kPageBytes;
}

void Leases::give_back(BlockId block) {
  Block& entry = blocks_[block];
  std::fill_n(owner_.begin() + entry.first_page, entry.pages, kNoBlock);
  extents_.give_back(entry.first_page, entry.pages);
  total_->fetch_sub(std::uint64_t{entry.pages} * kPageBytes, std::memory_order_relaxed);
  entry = {};
  unused_.push_back(block);
}

}  // namespace akv::arena
