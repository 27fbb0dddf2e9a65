// Bytes of memory that stores under way may hold, over all connections. A store beyond it waits for its turn
// and is asked for its data (R2T) only then. One store of each connection is always served at once: a host
// that was asked and then sends nothing must not keep the others waiting. So the memory is bounded by the
// limit and one value for each connection. A capsule that is being received can't wait: it is charged
// whatever the limit, which makes others wait; a connection has one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

namespace akv::softcard {

struct BudgetWaiter {
  // Its turn: takes what it can. True when nothing of it waits any more.
  virtual bool use_budget() = 0;

 protected:
  ~BudgetWaiter() = default;
};

class ReceiveBudget {
 public:
  // `on_free` must lead to serve() soon, from outside give_back().
  ReceiveBudget(std::uint64_t limit, std::function<void()> on_free)
      : limit_(limit), on_free_(std::move(on_free)) {}

  // For a connection that holds `held` bytes already. False: not now.
  [[nodiscard]] bool take(std::uint64_t bytes, std::uint64_t held) noexcept;
  void charge(std::uint64_t bytes) noexcept { used_ += bytes; }
  void give_back(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t used() const noexcept { return used_; }

  void join_line(BudgetWaiter& waiter) { line_.push_back(&waiter); }
  void leave_line(BudgetWaiter& waiter) { std::erase(line_, &waiter); }
  // Gives everyone in the line a turn.
  void serve();

 private:
  std::uint64_t limit_;
  std::uint64_t used_{0};
  std::function<void()> on_free_;
  std::deque<BudgetWaiter*> line_;
};

}  // namespace akv::softcard
