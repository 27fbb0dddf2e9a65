// Cores that wake up soon, while somebody has work for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"

namespace akv {

// While its owner is busy, asks Linux not to let idle cores sleep so deeply that they take long to wake up:
// PM QoS, by a descriptor of /dev/cpu_dma_latency that is open as long as the request holds, for all cores of
// the machine (Documentation/power/pm_qos_interface.rst). Not thread-safe; each owner has a request of its
// own. It has no timer: a request ends at the owner's next look after kLinger.
class ShortWakeups {
 public:
  static constexpr auto kEvery = std::chrono::milliseconds(100);
  // A request wakes all idle cores: it is not made and taken back between the bursts of one load.
  static constexpr auto kLinger = std::chrono::milliseconds(300);
  // Who is busy for less than one part in so many would pay with power, and gain little.
  static constexpr int kLeastShare = 100;

  // `most_us`: how long a core may take to wake up.
  explicit ShortWakeups(std::string device, std::int32_t most_us) noexcept;
  // As Linux offers it, with what suits this machine.
  ShortWakeups() : ShortWakeups("/dev/cpu_dma_latency", suitable_us()) {}

  // `busy`: for how long the owner was busy in all, until `now`. To be called before each wait.
  void look(TimePoint now, std::chrono::nanoseconds busy) {
    if (now - looked_ >= kEvery || (is_idle_ && (busy - busy_) * kLeastShare >= kEvery)) judge(now, busy);
  }
  [[nodiscard]] bool held() const noexcept { return static_cast<bool>(request_); }

  // By the name of Linux' idle driver. Virtual machines that poll before they halt do that for 0 alone;
  // processors have a state that is left within 2 us and lets the neighbour on the same core run.
  [[nodiscard]] static std::int32_t suitable_us(std::string_view driver) noexcept;

 private:
  [[nodiscard]] static std::int32_t suitable_us();
  void judge(TimePoint now, std::chrono::nanoseconds busy);
  void ask();
  void give_up(const char* what);

  std::string device_;
  std::int32_t most_us_;
  UniqueFd request_;
  bool is_idle_{true};  // at the last judgement
  bool told_{false};
  TimePoint looked_{};
  TimePoint last_busy_{};
  std::chrono::nanoseconds busy_{0};
};

}  // namespace akv
