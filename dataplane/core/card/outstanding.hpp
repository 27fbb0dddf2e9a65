// Counts work that was handed to other threads, for one thread that waits until all of it is done.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace akv::card {

class Outstanding {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void done() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  [[nodiscard]] bool wait_for_none(std::chrono::milliseconds deadline) {
    std::unique_lock lock(mutex_);
    return none_.wait_for(lock, deadline, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::size_t count_{0};
};

}  // namespace akv::card
