// Capped exponential backoff with jitter.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace akv {

// A uniform draw from [0, 1).
using UniformFunction = std::function<double()>;

// Seeded from the system's entropy; one generator for each caller, not thread-safe.
[[nodiscard]] UniformFunction make_uniform();
[[nodiscard]] UniformFunction make_uniform(std::uint64_t seed);

// The n-th delay is drawn from [base/2, base) with base = min(cap, first * 2^n): spread, but never near zero.
class Backoff {
 public:
  // Throws std::invalid_argument unless 0 < first <= cap.
  Backoff(std::chrono::milliseconds first, std::chrono::milliseconds cap, UniformFunction uniform);

  [[nodiscard]] std::chrono::milliseconds next();
  // After a success: the next delay is the first again.
  void reset() noexcept { base_ = first_; }

 private:
  std::chrono::milliseconds first_;
  std::chrono::milliseconds cap_;
  std::chrono::milliseconds base_;
  UniformFunction uniform_;
};

}  // namespace akv
