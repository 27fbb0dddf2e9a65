#include "softcard/memory_store.hpp"

#include <algorithm>
#include <utility>

namespace akv::softcard {

MemoryStore::MemoryStore(std::uint64_t capacity, std::uint32_t max_value_bytes)
    : capacity_(capacity),
      max_value_bytes_(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(max_value_bytes, capacity > kPairBytes ? capacity - kPairBytes : 0))) {}

nvme::Status MemoryStore::put(const nvme::KvKey& key, Value value) {
  if (value.size > max_value_bytes_) return nvme::kCapacityExceeded;
  if (const auto old = pairs_.find(key); old != pairs_.end()) erase(old);
  while (used() + value.size + kPairBytes > capacity_)
    evict_one();
  bytes_ += value.size;
  const auto place = order_.insert(order_.end(), key);
  pairs_.emplace(key, Pair{.value = std::move(value), .place = place});
  return nvme::kSuccess;
}

nvme::Status MemoryStore::get(const nvme::KvKey& key, Value& value) {
  const auto found = pairs_.find(key);
  if (found == pairs_.end()) return nvme::kKvKeyDoesNotExist;
  found->second.retrieved = true;
  value = found->second.value;
  return nvme::kSuccess;
}

nvme::Status MemoryStore::remove(const nvme::KvKey& key) {
  const auto found = pairs_.find(key);
  if (found == pairs_.end()) return nvme::kKvKeyDoesNotExist;
  erase(found);
  return nvme::kSuccess;
}

void MemoryStore::walk(const nvme::KvKey& start, const std::function<bool(const nvme::KvKey&)>& visit) const {
  for (auto pair = pairs_.lower_bound(start); pair != pairs_.end() && visit(pair->first); ++pair) {
  }
}

StoreStats MemoryStore::stats() const noexcept {
  return {.keys = pairs_.size(), .bytes = bytes_, .capacity = capacity_, .evictions = evictions_};
}

void MemoryStore::erase(Pairs::iterator pair) {
  bytes_ -= pair->second.value.size;
  order_.erase(pair->second.place);
  pairs_.erase(pair);
}

// Ends because every pair that gets its second chance loses its mark.
void MemoryStore::evict_one() {
  auto oldest = pairs_.find(order_.front());
  while (std::exchange(oldest->second.retrieved, false)) {
    order_.splice(order_.end(), order_, order_.begin());
    oldest = pairs_.find(order_.front());
  }
  erase(oldest);
  ++evictions_;
}

}  // namespace akv::softcard
