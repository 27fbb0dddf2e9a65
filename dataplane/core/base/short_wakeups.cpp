#include "base/short_wakeups.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/events.hpp"

namespace akv {
namespace {

constexpr const char* kIdleDriver = "/sys/devices/system/cpu/cpuidle/current_driver";
constexpr std::int32_t kVirtualUs = 0;
constexpr std::int32_t kRealUs = 2;

}  // namespace

ShortWakeups::ShortWakeups(std::string device, std::int32_t most_us) noexcept
    : device_(std::move(device)), most_us_(most_us) {}

std::int32_t ShortWakeups::suitable_us(std::string_view driver) noexcept {
  return driver == "haltpoll" ? kVirtualUs : kRealUs;
}

std::int32_t ShortWakeups::suitable_us() {
  std::ifstream file(kIdleDriver);
  std::string driver;
  file >> driver;
  return suitable_us(driver);
}

void ShortWakeups::judge(TimePoint now, std::chrono::nanoseconds busy) {
  is_idle_ = (busy - std::exchange(busy_, busy)) * kLeastShare < now - looked_;
  looked_ = now;
  if (!is_idle_) {
    last_busy_ = now;
    ask();
  } else if (now - last_busy_ >= kLinger) {
    request_.reset();
  }
}

void ShortWakeups::ask() {
  if (request_) return;
  UniqueFd request(::open(device_.c_str(), O_WRONLY | O_CLOEXEC));
  if (!request) return give_up("open");
  if (::write(request.get(), &most_us_, sizeof most_us_) != sizeof most_us_) return give_up("write");
  request_ = std::move(request);
}

// It is tried on, and told once.
void ShortWakeups::give_up(const char* what) {
  const std::error_code reason(errno, std::generic_category());
  if (std::exchange(told_, true)) return;
  log_event(Level::info, "wakeups_not_shortened",
            {{"device", device_}, {"reason", std::string(what) + ": " + reason.message()}});
}

}  // namespace akv
