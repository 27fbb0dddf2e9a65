// What is wrong with a card, by name: stable, so that operators and alerts can go by it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "base/clock.hpp"
#include "card/card_set.hpp"
#include "fabric/ending.hpp"

namespace akv::card {

// The state of a card that left service, or can't be taken into it, for that reason.
[[nodiscard]] CardState state_after(Trouble trouble) noexcept;
[[nodiscard]] Trouble trouble_of(fabric::Ending ending) noexcept;

// What went wrong with a card last. Any thread may call; of two that note something at once one
// is kept.
class RecentTrouble {
 public:
  // How long a card in service counts as troubled afterwards: one that comes and goes is seen, too.
  static constexpr std::chrono::seconds kShown{10};

  void note(Trouble trouble, TimePoint now) noexcept {
    last_.store(milliseconds_of(now) << kTroubleBits | static_cast<std::uint64_t>(trouble),
                std::memory_order_relaxed);
  }
  [[nodiscard]] Trouble at(TimePoint now) const noexcept;

 private:
  static constexpr unsigned kTroubleBits = 8;

  [[nodiscard]] static std::uint64_t milliseconds_of(TimePoint time) noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count());
  }

  std::atomic<std::uint64_t> last_{0};  // when in milliseconds, and what
};

}  // namespace akv::card
