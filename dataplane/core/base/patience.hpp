// For how long a wait polls before it sleeps.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.hpp"

namespace akv {

enum class Waiting : std::uint8_t {
  sleep,     // sleeps when nothing is ready
  adaptive,  // polls first, as long as waits are short and the core is free
  poll,      // polls first, for as long as the adaptive way may
};

// To be woken up takes tens of microseconds, and CPU time of whoever wakes. The adaptive way is that of KVM
// for halted processors: a sleep that polling would have saved lengthens the time that is polled, a longer
// one ends polling.
class Patience {
 public:
  using Time = std::chrono::nanoseconds;
  // Longer than a card on a network takes for a command.
  static constexpr Time kMost = std::chrono::microseconds(500);
  // For what nobody owes: whoever asks one thing after another asks again as soon as that, his own waking up
  // included.
  static constexpr Time kMostUnasked = std::chrono::microseconds(200);
  static constexpr Time kFirst = std::chrono::microseconds(20);
  // Between two looks: somebody else had the core.
  static constexpr Time kInterrupted = std::chrono::microseconds(50);

  // `most`: the longest wait that is worth polling for, in the adaptive way.
  explicit Patience(Waiting how = Waiting::sleep, Time most = kMost) noexcept
      : how_(how), most_(most), window_(how == Waiting::poll ? kMost : Time(0)) {}

  // How long to poll from the beginning of a wait. `after_event`: the wait before it ended with one, and not
  // with a timer.
  [[nodiscard]] Time window(bool after_event = true) const noexcept {
    return how_ != Waiting::poll || after_event ? window_ : Time(0);
  }
  // A wait ended in sleep, `whole` after it began.
  void slept(Time whole) noexcept {
    if (how_ != Waiting::adaptive) return;
    window_ = whole > most_ ? Time(0) : std::clamp(2 * window_, kFirst, most_);
  }
  // `gap` lay between two looks while it was polled; true where polling is over.
  [[nodiscard]] bool interrupted(Time gap) noexcept {
    if (how_ != Waiting::adaptive || gap < kInterrupted) return false;
    window_ = Time(0);
    return true;
  }
  // Looks again and again for up to `most` from `start` on; whether `look` found something.
  template <typename Look>
  [[nodiscard]] bool poll(TimePoint start, Time most, Look look) {
    if (most <= Time(0)) return false;
    for (TimePoint last = start; !look();) {
      const TimePoint at = Clock::now();
      if (at - start >= most || interrupted(at - last)) return false;
      last = at;
    }
    return true;
  }

 private:
  Waiting how_;
  Time most_;
  Time window_;
};

}  // namespace akv
