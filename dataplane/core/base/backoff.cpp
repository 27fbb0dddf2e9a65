#include "base/backoff.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>

namespace akv {

UniformFunction make_uniform(std::uint64_t seed) {
  return [engine = std::mt19937_64(seed)]() mutable {
    return std::uniform_real_distribution<double>(0.0, 1.0)(engine);
  };
}

UniformFunction make_uniform() {
  std::random_device entropy;
  return make_uniform((std::uint64_t{entropy()} << 32U) | entropy());
}

Backoff::Backoff(std::chrono::milliseconds first, std::chrono::milliseconds cap, UniformFunction uniform)
    : first_(first), cap_(cap), base_(first), uniform_(std::move(uniform)) {
  if (first.count() <= 0 || cap < first) {
    throw std::invalid_argument("backoff needs 0 < first delay <= cap");
  }
}

std::chrono::milliseconds Backoff::next() {
  const auto base = base_;
  base_ = base_ > cap_ / 2 ? cap_ : base_ * 2;
  const double factor = 0.5 + 0.5 * uniform_();
  const auto drawn =
      std::chrono::milliseconds(static_cast<std::int64_t>(static_cast<double>(base.count()) * factor));
  return std::max(drawn, std::chrono::milliseconds(1));
}

}  // namespace akv
