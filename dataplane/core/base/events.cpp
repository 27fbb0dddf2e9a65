#include "base/events.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <system_error>

namespace akv {
namespace {

// A descriptor that polls writable takes PIPE_BUF (4,096) bytes without blocking, so no line is longer.
constexpr std::size_t kMaxLine = 4096;

std::string to_json_line(const Event& event, std::uint64_t dropped) {
  nlohmann::ordered_json line;
  line["timestamp"] = event.unix_seconds;
  line["level"] = to_string(event.level);
  line["event"] = event.name;
  for (const Field& field : event.fields) {
    std::visit([&](const auto& value) { line[field.key] = value; }, field.value);
  }
  if (dropped > 0) line["dropped_events"] = dropped;
  // Foreign bytes (a card's serial) may not be UTF-8: they are replaced, never thrown over.
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string bounded_line(const Event& event, std::uint64_t dropped) {
  std::string line = to_json_line(event, dropped);
  if (line.size() <= kMaxLine) return line;
  Event shortened{event.level, event.name.substr(0, 256), event.unix_seconds, {}};
  shortened.fields.emplace_back("truncated_bytes", line.size());
  return to_json_line(shortened, dropped);
}

bool write_at_once(int fd, std::string_view line) noexcept {
  pollfd ready{fd, POLLOUT, 0};
  if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return false;
  return ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

struct SinkHolder {
  std::mutex mutex;
  std::shared_ptr<EventSink> sink{std::make_shared<JsonLinesSink>(STDERR_FILENO)};
};

// Never destroyed: threads may log while the process ends.
SinkHolder& holder() {
  static auto* const instance = new SinkHolder;
  return *instance;
}

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string_view to_string(Level level) noexcept {
  switch (level) {
    case Level::debug:
      return "debug";
    case Level::info:
      return "info";
    case Level::warning:
      return "warning";
    case Level::error:
      return "error";
  }
  return "error";
}

void JsonLinesSink::emit(Event&& event) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    if (write_at_once(fd_, bounded_line(event, dropped_))) {
      dropped_ = 0;
      return;
    }
  } catch (const std::exception&) {
    // Out of memory while logging: counted below like a line that did not fit.
  }
  ++dropped_;
}

EventQueue::EventQueue(std::size_t capacity)
    : capacity_(capacity), wakeup_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!wakeup_) throw std::system_error(errno, std::generic_category(), "eventfd for log events");
}

void EventQueue::emit(Event&& event) noexcept {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= capacity_) {
    ++dropped_;
    return;
  }
  try {
    waiting_.push_back(std::move(event));
  } catch (const std::bad_alloc&) {
    ++dropped_;
    return;
  }
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the reader is awake already.
  [[maybe_unused]] const auto written = ::write(wakeup_.get(), &one, sizeof one);
}

std::vector<Event> EventQueue::take() {
  const std::lock_guard lock(mutex_);
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(wakeup_.get(), &count, sizeof count);
  std::vector<Event> events(std::make_move_iterator(waiting_.begin()),
                            std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  if (dropped_ > 0) {
    events.push_back(Event{Level::warning, "events_dropped", unix_now(), {Field("count", dropped_)}});
    dropped_ = 0;
  }
  return events;
}

std::shared_ptr<EventSink> set_event_sink(std::shared_ptr<EventSink> sink) {
  const std::lock_guard lock(holder().mutex);
  return std::exchange(holder().sink, std::move(sink));
}

void log_event(Level level, std::string_view name, std::initializer_list<Field> fields) {
  std::shared_ptr<EventSink> sink;
  {
    const std::lock_guard lock(holder().mutex);
    sink = holder().sink;
  }
  if (sink) sink->emit(Event{level, std::string(name), unix_now(), std::vector<Field>(fields)});
}

}  // namespace akv
