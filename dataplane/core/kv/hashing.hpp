// Hashes that Python (controlplane/model) and C++ share; tests/vectors/routing.json holds both to the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace akv::kv {

inline constexpr std::size_t kSlots = 8;

// Bit i is set when slot i may take dialogs.
using SlotMask = std::uint8_t;

// The finalizer of splitmix64.
[[nodiscard]] constexpr std::uint64_t fmix(std::uint64_t x) noexcept {
  x ^= x >> 30U;
  x *= 0xBF58476D1CE4E5B9U;
  x ^= x >> 27U;
  x *= 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t dialog, std::uint64_t slot) noexcept {
  return fmix(dialog ^ fmix((slot + 1) * 0x9E3779B97F4A7C15U));
}

// Rendezvous hashing: the routable slot with the highest weight, the lower slot on a tie; nothing when no
// slot is routable. Taking a slot out moves its own dialogs only.
[[nodiscard]] constexpr std::optional<std::size_t> slot_of(std::uint64_t dialog, SlotMask routable) noexcept {
  std::optional<std::size_t> best;
  std::uint64_t best_weight = 0;
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    if ((unsigned{routable} >> slot & 1U) == 0) continue;
    const std::uint64_t weight = mix64(dialog, slot);
    if (!best || weight > best_weight) {
      best = slot;
      best_weight = weight;
    }
  }
  return best;
}

}  // namespace akv::kv
