// What a copy of a block is known by.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kv/hashing.hpp"
#include "kv/keys.hpp"

namespace akv::gateway {

// Of one namespace with its secret and num_dbs: no two of them ever share a copy.
using SpaceId = kv::CardKey;

// `hash` is of the key alone, by the engine's own secret, so that nobody can choose keys that collide.
struct BlockName {
  kv::EngineKey key{};
  SpaceId space{};
  std::uint64_t lane{0};  // the card as one lane has it; a card that was away is another
  std::uint64_t hash{0};

  bool operator==(const BlockName&) const = default;
  // Of the whole name.
  [[nodiscard]] std::uint64_t mixed() const noexcept { return kv::mix64(hash, lane); }
};

// A keyed hash (SipHash) of engine keys. The same for all workers of an engine.
class KeyHasher {
 public:
  KeyHasher();
  [[nodiscard]] std::uint64_t operator()(const kv::EngineKey& key) const noexcept;

 private:
  std::array<unsigned char, 16> secret_;
};

}  // namespace akv::gateway
