#include "softcard/memory_store.hpp"

#include <algorithm>
#include <utility>

namespace akv::softcard {

MemoryStore::MemoryStore(std::uint64_t capacity, std::uint32_t max_value_bytes)
    : capacity_(capacity),
      max_value_bytes_(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(max_value_bytes, capacity > kPairBytes ? capacity - kPairBytes : 0))) {}

std::optional<std::uint32_t> MemoryStore::find(const nvme::KvKey& key) const {
  const auto found = pairs_.find(key);
  return found == pairs_.end() ? std::nullopt : std::optional(found->second.value.size);
}

nvme::Status MemoryStore::put(const nvme::KvKey& key, Value value, std::uint8_t options) {
  if (value.size > max_value_bytes_) return nvme::kCapacityExceeded;
  const auto old = pairs_.find(key);
  const auto status = check_store_options(old != pairs_.end(), options);
  if (status != nvme::kSuccess) return status;
  if (old != pairs_.end()) erase(old);
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
  if (found->second.chances < kMaxChances) ++found->second.chances;
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
  return {.keys = pairs_.size(),
          .bytes = bytes_,
          .capacity = capacity_,
          .evictions = evictions_,
          .moves = moves_};
}

void MemoryStore::erase(Pairs::iterator pair) {
  bytes_ -= pair->second.value.size;
  order_.erase(pair->second.place);
  pairs_.erase(pair);
}

// Ends because every pair that is kept has a chance less.
void MemoryStore::evict_one() {
  auto oldest = pairs_.find(order_.front());
  while (oldest->second.chances > 0) {
    --oldest->second.chances;
    ++moves_;
    order_.splice(order_.end(), order_, order_.begin());
    oldest = pairs_.find(order_.front());
  }
  erase(oldest);
  ++evictions_;
}

}  // namespace akv::softcard
