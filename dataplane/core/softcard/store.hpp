// What keeps the card's key-value pairs: bounded in bytes, evicting by itself (first in, first out, with up
// to three more chances for what was retrieved since).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

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
  std::uint64_t bytes{0};        // of live values
  std::uint64_t capacity{0};     // bytes, as configured
  std::uint64_t evictions{0};    // pairs dropped to make room
  std::uint64_t moves{0};        // pairs that had been retrieved and were kept instead
  std::uint64_t corrupt{0};      // pairs dropped because their bytes did not verify
  std::uint64_t index_bytes{0};  // memory of the index
  std::uint64_t max_keys{0};     // of a file; 0: the capacity alone bounds them
};

// How often a pair that is retrieved again and again is kept instead of evicted, from its last retrieval on.
// Three is best on the published conversation trace (docs/softcard.md, "Eviction").
inline constexpr std::uint8_t kMaxChances = 3;

// 3.2.5, store options: kSuccess, kKvKeyDoesNotExist or kKvKeyExists.
[[nodiscard]] constexpr nvme::Status check_store_options(bool exists, std::uint8_t options) noexcept {
  if (!exists && (options & nvme::kStoreOnlyIfKeyExists) != 0) return nvme::kKvKeyDoesNotExist;
  if (exists && (options & nvme::kStoreOnlyIfKeyIsNew) != 0) return nvme::kKvKeyExists;
  return nvme::kSuccess;
}

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // Longest value in bytes; put() of a longer one is refused.
  [[nodiscard]] virtual std::uint32_t max_value_bytes() const noexcept = 0;
  // Bytes of the key's value; nothing when there is none.
  [[nodiscard]] virtual std::optional<std::uint32_t> find(const nvme::KvKey& key) const = 0;
  [[nodiscard]] bool contains(const nvme::KvKey& key) const { return find(key).has_value(); }
  // kSuccess, what `options` (kStoreOnlyIf...) forbids, kCapacityExceeded, or kInternalError when the medium
  // refuses.
  [[nodiscard]] virtual nvme::Status put(const nvme::KvKey& key, Value value, std::uint8_t options = 0) = 0;
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
