// The longest block that the clients of each namespace have named: where that is more than a card takes as
// one value, values there may lie in segments.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace akv::gateway {

using BlockLength = std::shared_ptr<std::atomic<std::uint32_t>>;

class BlockLengths {
 public:
  // Of a namespace, in bytes; kept as long as one of its sessions has it. Thread-safe, for HELLO alone.
  [[nodiscard]] BlockLength of(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(known_, [](const auto& item) { return item.second.expired(); });
    auto& place = known_[name];
    auto length = place.lock();
    if (length == nullptr) place = length = std::make_shared<std::atomic<std::uint32_t>>(0);
    return length;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<std::atomic<std::uint32_t>>> known_;
};

inline void name_length(std::atomic<std::uint32_t>& longest, std::uint32_t length) noexcept {
  std::uint32_t known = longest.load(std::memory_order_relaxed);
  while (length > known && !longest.compare_exchange_weak(known, length, std::memory_order_relaxed)) {
  }
}

}  // namespace akv::gateway
