#include "card/registry.hpp"

#include <chrono>
#include <stdexcept>
#include <thread>

#include "base/events.hpp"

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

void stop_at_destruction(CardSet& set) noexcept {
  bool clean = false;
  try {
    clean = set.stop(std::chrono::seconds(5));
  } catch (const std::runtime_error&) {
    // Told below: a worker's loop does not run.
  }
  if (!clean)
    log_event(Level::error, "card_set_stop_incomplete", {{"remedy", "stop the set before its workers"}});
}

}  // namespace akv::card
