// What keeps the card's key-value pairs: bounded in bytes, evicting by itself (first in, first out, with a
// second chance for what was retrieved since).
#pragma once

#include <cstdint>
#include <functional>

#include "base/bytes.hpp"
#include "nvme/kv.hpp"
#include "nvme/status.hpp"
#include "softcard/value.hpp"

namespace akv::softcard {

// Bytewise, then by length, as KvKey's own order; without a call to memcmp for each step through a tree.
struct KeyOrder {
  [[nodiscard]] bool operator()(const nvme::KvKey& left, const nvme::KvKey& right) const noexcept {
    for (std::size_t at = 0; at < nvme::kKvKeyMaxBytes; at += sizeof(std::uint64_t)) {
      const auto a = __builtin_bswap64(load_le<std::uint64_t>(left.bytes.data() + at));
      const auto b = __builtin_bswap64(load_le<std::uint64_t>(right.bytes.data() + at));
      if (a != b) return a < b;
    }
    return left.length < right.length;
  }
};

struct StoreStats {
  std::uint64_t keys{0};
  std::uint64_t bytes{0};      // of live values
  std::uint64_t capacity{0};   // bytes, as configured
  std::uint64_t evictions{0};  // pairs dropped to make room
  std::uint64_t corrupt{0};    // pairs dropped because their bytes did not verify
};

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // Longest value in bytes; put() of a longer one is refused.
  [[nodiscard]] virtual std::uint32_t max_value_bytes() const noexcept = 0;
  [[nodiscard]] virtual bool contains(const nvme::KvKey& key) const = 0;
  // kSuccess, kCapacityExceeded, or kInternalError when the medium refuses.
  [[nodiscard]] virtual nvme::Status put(const nvme::KvKey& key, Value value) = 0;
  // kSuccess with `value` set, kKvKeyDoesNotExist, or kKvUnrecoveredError (the pair is then gone).
  [[nodiscard]] virtual nvme::Status get(const nvme::KvKey& key, Value& value) = 0;
  // kSuccess, kKvKeyDoesNotExist, or kInternalError when the medium refuses.
  [[nodiscard]] virtual nvme::Status remove(const nvme::KvKey& key) = 0;
  // Keys in bytewise order, from the first that is not before `start`, until `visit` says false.
  virtual void walk(const nvme::KvKey& start, const std::function<bool(const nvme::KvKey&)>& visit) const = 0;
  [[nodiscard]] virtual StoreStats stats() const noexcept = 0;
  // Puts everything on the medium. Throws std::system_error when it refuses.
  virtual void flush() = 0;
};

}  // namespace akv::softcard
