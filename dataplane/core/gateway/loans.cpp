#include "gateway/loans.hpp"

namespace akv::gateway {

Loans::~Loans() {
  for (const auto& [slot, count] : lent_) {
    for (std::uint32_t i = 0; i < count; ++i)
      cache_.unpin(slot);
  }
}

bool Loans::lend(ReadCache::Slot slot) {
  if (count_ == most_ || !cache_.pin(slot)) return false;
  ++lent_[slot];
  ++count_;
  return true;
}

bool Loans::give_back(std::span<const std::uint64_t> offsets) {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (count_down(offsets[i])) continue;
    for (const std::uint64_t done : offsets.first(i))
      ++lent_[*cache_.pinned_at(done)];
    return false;
  }
  for (const std::uint64_t offset : offsets) {
    const ReadCache::Slot slot = *cache_.pinned_at(offset);
    const auto found = lent_.find(slot);
    // Named twice: erased by the first.
    if (found != lent_.end() && found->second == 0) lent_.erase(found);
    cache_.unpin(slot);
  }
  count_ -= static_cast<std::uint32_t>(offsets.size());
  return true;
}

bool Loans::count_down(std::uint64_t offset) {
  const auto slot = cache_.pinned_at(offset);
  if (!slot) return false;
  const auto found = lent_.find(*slot);
  if (found == lent_.end() || found->second == 0) return false;
  --found->second;
  return true;
}

}  // namespace akv::gateway
