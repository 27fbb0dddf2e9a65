// Key-value pairs in this process's memory.
#pragma once

#include <list>
#include <map>

#include "softcard/store.hpp"

namespace akv::softcard {

class MemoryStore final : public Store {
 public:
  // A pair takes its value's bytes and kPairBytes of the capacity.
  static constexpr std::uint64_t kPairBytes = 128;

  MemoryStore(std::uint64_t capacity, std::uint32_t max_value_bytes);

  [[nodiscard]] std::uint32_t max_value_bytes() const noexcept override { return max_value_bytes_; }
  [[nodiscard]] std::optional<std::uint32_t> find(const nvme::KvKey& key) const override;
  [[nodiscard]] nvme::Status put(const nvme::KvKey& key, Value value, std::uint8_t options = 0) override;
  [[nodiscard]] nvme::Status get(const nvme::KvKey& key, Value& value) override;
  [[nodiscard]] nvme::Status remove(const nvme::KvKey& key) override;
  void walk(const nvme::KvKey& start, const std::function<bool(const nvme::KvKey&)>& visit) const override;
  [[nodiscard]] StoreStats stats() const noexcept override;
  void flush() override {}

 private:
  using Order = std::list<nvme::KvKey>;
  struct Pair {
    Value value;
    Order::iterator place;
    std::uint8_t chances{0};
  };
  using Pairs = std::map<nvme::KvKey, Pair, KeyOrder>;

  [[nodiscard]] std::uint64_t used() const noexcept { return bytes_ + pairs_.size() * kPairBytes; }
  void erase(Pairs::iterator pair);
  void evict_one();

  std::uint64_t capacity_;
  std::uint32_t max_value_bytes_;
  Pairs pairs_;
  Order order_;  // oldest first
  std::uint64_t bytes_{0};
  std::uint64_t evictions_{0};
  std::uint64_t moves_{0};
};

}  // namespace akv::softcard
