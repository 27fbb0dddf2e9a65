// Stores of one connection whose data the host still owes: asked for by R2T, or waiting for memory.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "nvme/kv.hpp"
#include "softcard/receive_budget.hpp"
#include "softcard/value.hpp"

namespace akv::softcard {

struct Transfer {
  std::uint16_t cid{0};
  nvme::KvCommand command{};
  SharedBytes bytes;          // set when asked for
  std::uint32_t received{0};  // bytes; data comes in order (one R2T covers the value)
  bool digest_failed{false};
  std::optional<TimePoint> deadline;  // set when asked for
};

class TransferTable {
 public:
  explicit TransferTable(ReceiveBudget& budget) noexcept : budget_(budget) {}
  TransferTable(const TransferTable&) = delete;
  TransferTable& operator=(const TransferTable&) = delete;
  ~TransferTable() { clear(); }

  // Gives the transfer's tag; nullopt when memory is short: then it waits.
  [[nodiscard]] std::optional<std::uint16_t> start(std::uint16_t cid, const nvme::KvCommand& command);
  // The first that waits, if memory suffices now.
  [[nodiscard]] std::optional<std::uint16_t> start_waiting();
  [[nodiscard]] bool any_waiting() const noexcept { return !waiting_.empty(); }

  // nullptr: no such tag.
  [[nodiscard]] Transfer* find(std::uint16_t tag) noexcept;
  // Takes a finished transfer out; its memory stays on the budget until it is given back.
  [[nodiscard]] Transfer finish(std::uint16_t tag);
  void give_back(std::uint32_t bytes);
  // Takes a waiting one out by its command id.
  [[nodiscard]] bool cancel_waiting(std::uint16_t cid);
  void clear();

  [[nodiscard]] bool uses(std::uint16_t cid) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return active_ + waiting_.size(); }
  [[nodiscard]] bool overdue(TimePoint now) const noexcept;

 private:
  [[nodiscard]] std::optional<std::uint16_t> place(Transfer transfer);

  ReceiveBudget& budget_;
  std::vector<std::optional<Transfer>> slots_;  // index = tag
  std::vector<std::uint16_t> free_;
  std::deque<Transfer> waiting_;
  std::size_t active_{0};
  std::uint64_t held_{0};  // bytes of the budget
};

}  // namespace akv::softcard
