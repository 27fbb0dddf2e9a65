// The requests that one I/O queue has accepted, in the order of their deadlines.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/clock.hpp"
#include "card/io.hpp"

namespace akv::card {

inline constexpr std::uint32_t kNoEntry = std::numeric_limits<std::uint32_t>::max();

struct Entry {
  IoRequest* request{nullptr};
  TimePoint deadline;
  std::uint32_t bytes{0};  // payload
  bool sent{false};
  bool timed_out{false};
  std::uint32_t previous{kNoEntry};
  std::uint32_t next{kNoEntry};
};

// A fixed pool of entries in two lists. All requests have the same timeout, so order of arrival is order of
// deadline, and those not sent yet are the tail of the first list.
class EntryTable {
 public:
  struct List {
    std::uint32_t head{kNoEntry};
    std::uint32_t tail{kNoEntry};
  };

  explicit EntryTable(std::uint32_t capacity) : entries_(capacity) {
    for (std::uint32_t i = capacity; i > 0; --i)
      free_.push_back(i - 1);
  }

  [[nodiscard]] bool full() const noexcept { return free_.empty(); }
  [[nodiscard]] Entry& operator[](std::uint32_t index) noexcept { return entries_[index]; }

  // Accepted and not timed out; not to be called when full.
  std::uint32_t accept(IoRequest& request, TimePoint deadline, std::uint32_t bytes) noexcept {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    entries_[index] = {.request = &request, .deadline = deadline, .bytes = bytes};
    append(waiting, index);
    return index;
  }
  // From the list of those in time to that of those whose buffers the card still holds.
  void quarantine(std::uint32_t index, TimePoint until) noexcept {
    unlink(waiting, index);
    entries_[index].timed_out = true;
    entries_[index].deadline = until;
    append(quarantined, index);
  }
  // Gives the entry back to the pool and its request to the caller.
  IoRequest& remove(std::uint32_t index) noexcept {
    unlink(entries_[index].timed_out ? quarantined : waiting, index);
    free_.push_back(index);
    return *entries_[index].request;
  }

  List waiting;      // for an answer in time, sent or not
  List quarantined;  // timed out, sent, not answered

 private:
  void append(List& list, std::uint32_t index) noexcept {
    entries_[index].previous = list.tail;
    entries_[index].next = kNoEntry;
    (list.tail == kNoEntry ? list.head : entries_[list.tail].next) = index;
    list.tail = index;
  }
  void unlink(List& list, std::uint32_t index) noexcept {
    const Entry& entry = entries_[index];
    (entry.previous == kNoEntry ? list.head : entries_[entry.previous].next) = entry.next;
    (entry.next == kNoEntry ? list.tail : entries_[entry.next].previous) = entry.previous;
  }

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
};

}  // namespace akv::card
