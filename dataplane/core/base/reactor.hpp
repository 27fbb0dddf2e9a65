// One thread's event loop: file descriptors, timers, and a bounded mailbox from other threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.hpp"
#include "base/patience.hpp"

namespace akv {

// Receives readiness of one file descriptor. `events` are EPOLL* bits.
struct FdHandler {
  virtual void on_events(std::uint32_t events) noexcept = 0;

 protected:
  ~FdHandler() = default;
};

using TimerId = std::uint64_t;  // 0 is never a timer

// Not thread-safe but for post() and stop(). Callbacks may add and remove anything, themselves included;
// they must not throw.
class Reactor {
 public:
  Reactor();  // throws std::system_error when epoll or eventfd can't be had
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Throws std::system_error when the kernel refuses.
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
  void run();                                    // until stop()
  void run_once(std::chrono::milliseconds at_most);
  void stop() noexcept;  // from any thread
  // At first: sleep.
  void set_waiting(Waiting how) noexcept;
  // From now on says in it for how many nanoseconds of run() it did not wait, by sleeping or polling. CPU
  // time does not tell how busy a thread is that polls.
  void count_busy(std::atomic<std::uint64_t>& nanoseconds) noexcept;
  // While it is busy, cores wake up soon.
  void shorten_wakeups();
  // So many more answers (less where negative) are under way: the adaptive way polls longer for those.
  void expect(int more) noexcept;

 private:
  friend class AfterEvent;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Work that an object wants done once after the current event, however often it asks, without an allocation
// for each time (a queue's flush). Its destruction takes the request back.
class AfterEvent {
 public:
  AfterEvent(Reactor& reactor, std::function<void()> work);
  ~AfterEvent();
  AfterEvent(const AfterEvent&) = delete;
  AfterEvent& operator=(const AfterEvent&) = delete;

  void request();

 private:
  friend class Reactor;
  Reactor& reactor_;
  std::function<void()> work_;
  bool requested_{false};
};

}  // namespace akv
