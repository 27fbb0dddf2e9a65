// Monotonic time. Intervals and deadlines never come from the wall clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace akv {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

// Where "now" comes from, for parts whose tests turn the clock themselves.
using NowFunction = std::function<TimePoint()>;

[[nodiscard]] inline TimePoint monotonic_now() noexcept {
  return Clock::now();
}

[[nodiscard]] inline std::int64_t to_milliseconds(std::chrono::nanoseconds span) noexcept {
  return std::chrono::duration_cast<std::chrono::milliseconds>(span).count();
}

// A point in time that work must not outlive.
class Deadline {
 public:
  Deadline(TimePoint now, std::chrono::nanoseconds span) noexcept
      : at_(now + std::chrono::duration_cast<Clock::duration>(span)) {}

  [[nodiscard]] TimePoint at() const noexcept { return at_; }
  [[nodiscard]] bool passed(TimePoint now) const noexcept { return now >= at_; }
  // Never negative.
  [[nodiscard]] std::chrono::nanoseconds left(TimePoint now) const noexcept {
    return passed(now) ? std::chrono::nanoseconds::zero() : std::chrono::nanoseconds(at_ - now);
  }

 private:
  TimePoint at_;
};

}  // namespace akv
