// Log events of the native code: a stable name with keys and values, handed to one process-wide sink.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/unique_fd.hpp"

namespace akv {

enum class Level : std::uint8_t { debug, info, warning, error };

[[nodiscard]] std::string_view to_string(Level level) noexcept;

using FieldValue = std::variant<bool, std::int64_t, std::uint64_t, double, std::string>;

struct Field {
  std::string key;
  FieldValue value;

  template <typename T>
  Field(std::string_view name, T&& from) : key(name), value(convert(std::forward<T>(from))) {}

 private:
  template <typename T>
  static FieldValue convert(T&& from) {
    using Plain = std::remove_cvref_t<T>;
    if constexpr (std::same_as<Plain, bool>) {
      return from;
    } else if constexpr (std::signed_integral<Plain>) {
      return static_cast<std::int64_t>(from);
    } else if constexpr (std::unsigned_integral<Plain>) {
      return static_cast<std::uint64_t>(from);
    } else if constexpr (std::floating_point<Plain>) {
      return static_cast<double>(from);
    } else {
      return std::string(std::string_view(from));
    }
  }
};

struct Event {
  Level level{Level::info};
  std::string name;
  double unix_seconds{0};  // wall clock, for people only
  std::vector<Field> fields;
};

// Takes events from any thread and must not block its caller.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void emit(Event&& event) noexcept = 0;
};

// One JSON object a line: {"timestamp", "level", "event", keys...}. A line that the descriptor can't take at
// once is dropped and counted; the next line that passes carries the count as "dropped_events".
class JsonLinesSink final : public EventSink {
 public:
  // `fd` stays the caller's.
  explicit JsonLinesSink(int fd) noexcept : fd_(fd) {}
  void emit(Event&& event) noexcept override;

 private:
  int fd_;
  std::mutex mutex_;
  std::uint64_t dropped_{0};
};

// Keeps events for another consumer (the Python shell): bounded, the newest are dropped and counted.
class EventQueue final : public EventSink {
 public:
  // Throws std::system_error when no eventfd can be had.
  explicit EventQueue(std::size_t capacity);
  void emit(Event&& event) noexcept override;

  // Readable while events wait; for poll or asyncio's add_reader.
  [[nodiscard]] int fd() const noexcept { return wakeup_.get(); }
  // All waiting events, oldest first; dropped ones are told by a last event "events_dropped" with "count".
  [[nodiscard]] std::vector<Event> take();

 private:
  std::size_t capacity_;
  UniqueFd wakeup_;
  std::mutex mutex_;
  std::deque<Event> waiting_;
  std::uint64_t dropped_{0};
};

// Replaces the process-wide sink (at first JSON lines on stderr) and gives back the one before.
std::shared_ptr<EventSink> set_event_sink(std::shared_ptr<EventSink> sink);

void log_event(Level level, std::string_view name, std::initializer_list<Field> fields = {});

}  // namespace akv
