// One thread's event loop: file descriptors, timers, and a bounded mailbox from other threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace akv {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

// Receives readiness of one file descriptor. `events` are EPOLL* bits.
struct FdHandler {
  virtual void on_events(std::uint32_t events) noexcept = 0;

 protected:
  ~FdHandler() = default;
};

using TimerId = std::uint64_t;  // 0 is never a timer

// Not thread-safe but for post() and stop(). Callbacks may add and remove anything, themselves included.
class Reactor {
 public:
  Reactor();
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  void add(int fd, std::uint32_t events, FdHandler& handler);
  void modify(int fd, std::uint32_t events);
  // After remove() the handler is not called again, not even for events already fetched.
  void remove(int fd) noexcept;

  [[nodiscard]] TimerId call_at(TimePoint when, std::function<void()> callback);
  [[nodiscard]] TimerId call_after(std::chrono::nanoseconds delay, std::function<void()> callback);
  void cancel(TimerId id) noexcept;

  // Runs `task` on this reactor's thread; from any thread. False when the mailbox (65,536 tasks) is full.
  [[nodiscard]] bool post(std::function<void()> task);
  // Runs `task` after the current event, on this thread (for callbacks that must not nest).
  void defer(std::function<void()> task);

  [[nodiscard]] TimePoint now() const noexcept;  // cached once per turn
  void run();                                     // until stop()
  void run_once(std::chrono::milliseconds at_most);
  void stop() noexcept;                           // from any thread

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace akv
