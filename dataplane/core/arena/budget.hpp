// A number of bytes that many owners share; thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace akv::arena {

class Budget;

// Bytes taken from a budget; they go back when it is destroyed.
class Reservation {
 public:
  Reservation() noexcept = default;
  Reservation(Reservation&& other) noexcept
      : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  inline ~Reservation();

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] explicit operator bool() const noexcept { return bytes_ != 0; }

 private:
  friend class Budget;
  Reservation(std::shared_ptr<Budget> budget, std::uint64_t bytes) noexcept
      : budget_(std::move(budget)), bytes_(bytes) {}

  std::shared_ptr<Budget> budget_;
  std::uint64_t bytes_{0};
};

class Budget : public std::enable_shared_from_this<Budget> {
 public:
  [[nodiscard]] static std::shared_ptr<Budget> make(std::uint64_t limit) {
    return std::shared_ptr<Budget>(new Budget(limit));
  }

  [[nodiscard]] std::uint64_t limit() const noexcept { return limit_; }
  [[nodiscard]] std::uint64_t used() const noexcept { return used_.load(std::memory_order_relaxed); }

  // All of `bytes`, or an empty reservation.
  [[nodiscard]] Reservation take(std::uint64_t bytes) { return take_up_to(bytes, bytes); }

  // At most `wanted` bytes in multiples of `unit`, as many as there are; empty when less than a unit is left.
  [[nodiscard]] Reservation take_up_to(std::uint64_t wanted, std::uint64_t unit) {
    if (unit == 0) return {};
    std::uint64_t used = used_.load(std::memory_order_relaxed);
    while (true) {
      const std::uint64_t granted = std::min(wanted, limit_ - used) / unit * unit;
      if (granted == 0) return {};
      if (used_.compare_exchange_weak(used, used + granted, std::memory_order_relaxed)) {
        return Reservation(shared_from_this(), granted);
      }
    }
  }

 private:
  friend class Reservation;
  explicit Budget(std::uint64_t limit) noexcept : limit_(limit) {}
  void give_back(std::uint64_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  std::uint64_t limit_;
  std::atomic<std::uint64_t> used_{0};
};

Reservation::~Reservation() {
  if (bytes_ != 0) budget_->give_back(bytes_);
}

}  // namespace akv::arena
