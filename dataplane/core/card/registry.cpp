#include "card/registry.hpp"

#include <chrono>
#include <stdexcept>
#include <thread>

namespace akv::card {

void post_patiently(Reactor& reactor, const std::function<void()>& task) {
  const Deadline deadline(monotonic_now(), std::chrono::seconds(5));
  while (!reactor.post(task)) {
    if (deadline.passed(monotonic_now())) {
      throw std::runtime_error("a worker's mailbox stayed full for 5 s: its loop stands still");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace akv::card
