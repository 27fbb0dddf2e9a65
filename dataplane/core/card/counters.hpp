// Counters of one queue: written by its worker alone, read by anyone.
#pragma once

#include <atomic>
#include <cstdint>

#include "card/card_set.hpp"

namespace akv::card {

// One writer, so a plain load and store replaces the locked read-modify-write.
class Counter {
 public:
  void add(std::uint64_t amount = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void subtract(std::uint64_t amount) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) - amount, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct alignas(64) QueueCounters {
  Counter timeouts;
  Counter retrieves;
  Counter hits;
  Counter stores;
  Counter exists;
  Counter removes;
  Counter errors;
  Counter bytes_in;
  Counter bytes_out;
  Counter inflight;

  // Counts one answer; `bytes` is the payload that moved.
  void count(IoOp op, IoStatus status, std::uint64_t bytes) noexcept {
    const bool ok = status == IoStatus::ok;
    if (status == IoStatus::error) errors.add();
    switch (op) {
      case IoOp::retrieve:
        retrieves.add();
        if (ok) hits.add();
        bytes_in.add(bytes);
        break;
      case IoOp::store:
        if (ok) stores.add();
        if (ok) bytes_out.add(bytes);
        break;
      case IoOp::exist:
        exists.add();
        break;
      case IoOp::remove:
        removes.add();
        break;
    }
  }

  void add_to(CardSnapshot& snapshot) const noexcept {
    snapshot.timeouts += timeouts.get();
    snapshot.retrieves += retrieves.get();
    snapshot.hits += hits.get();
    snapshot.stores += stores.get();
    snapshot.exists += exists.get();
    snapshot.removes += removes.get();
    snapshot.errors += errors.get();
    snapshot.bytes_in += bytes_in.get();
    snapshot.bytes_out += bytes_out.get();
    snapshot.inflight += inflight.get();
  }
};

}  // namespace akv::card
