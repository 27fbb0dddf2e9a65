// Keys under which values lie on a card, and the fingerprint of a slot plan (DESIGN.md, "Keys, values").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace akv::kv {

inline constexpr std::uint32_t kLayoutVersion = 1;

using EngineKey = std::array<std::byte, 32>;
using CardKey = std::array<std::byte, 16>;
using Secret = std::array<std::byte, 32>;

// Prepares libsodium. Throws std::runtime_error when it can't be used; call once before anything else here.
void init_crypto();

// Partition of a card's key space that a block belongs to, 0 .. num_dbs - 1.
[[nodiscard]] std::uint32_t db_index(const EngineKey& key, std::uint32_t num_dbs) noexcept;

// A short name of a namespace for the value's envelope. Not a secret and no protection.
[[nodiscard]] std::uint32_t namespace_id(std::string_view name);

// Derives the card keys of one namespace: BLAKE2b-128, keyed with the namespace's secret, over fields that
// each have a u32 length before them: label, u32 layout version, namespace, u32 num_dbs, u32 db index, engine
// key; the keys of further segments go on with u32 index, u32 count, u32 total length. Not thread-safe.
class KeyDeriver {
 public:
  // Without a secret of its own a namespace is keyed with 32 zero bytes: separated, not protected.
  KeyDeriver(std::string_view name, const Secret& secret, std::uint32_t num_dbs);
  ~KeyDeriver();
  KeyDeriver(KeyDeriver&&) noexcept;
  KeyDeriver& operator=(KeyDeriver&&) noexcept;

  // Of a whole value, and of the first segment of a segmented one.
  [[nodiscard]] CardKey value_key(const EngineKey& key) const;
  // Of segment `index` (1 .. count - 1) of a value of `total` bytes.
  [[nodiscard]] CardKey segment_key(const EngineKey& key, std::uint32_t index, std::uint32_t count,
                                    std::uint32_t total) const;

 private:
  struct Prefix;
  std::unique_ptr<Prefix> value_prefix_;
  std::unique_ptr<Prefix> segment_prefix_;
  std::uint32_t num_dbs_;
};

struct PlannedCard {
  std::uint8_t slot;
  std::string_view serial;
};

// 16 hex digits of BLAKE2b-128 over "akv-plan-1\0", u32 layout version, u32 num_dbs and for each card u8
// slot, u16 length, serial. `cards` must be in ascending order of slot.
[[nodiscard]] std::string plan_fingerprint(std::uint32_t num_dbs, std::span<const PlannedCard> cards);

}  // namespace akv::kv
