// Counters of one worker, written by it alone and read by anyone (docs/protocol.md, "STATS").
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kv/envelope.hpp"

namespace akv::gateway {

enum class Counter : std::uint8_t {
  gets,
  hits,
  misses,
  miss_no_card,
  miss_not_found,
  miss_timeout,
  miss_disconnected,
  miss_card_error,
  miss_deadline,
  miss_unneeded,
  miss_quarantined,
  miss_memory_lost,
  miss_too_large,
  miss_envelope_short,
  miss_envelope_magic,
  miss_envelope_version,
  miss_envelope_crc,
  miss_envelope_namespace,
  miss_envelope_key,
  miss_envelope_segment,
  miss_envelope_length,
  miss_payload_crc,
  gets_too_small,
  bytes_read,
  gets_shared,
  cache_hits,
  cache_fills,
  cache_evictions,
  cache_stale,
  borrowed,
  borrow_misses,
  puts,
  stored,
  lost_puts,
  lost_no_card,
  lost_no_space,
  lost_timeout,
  lost_disconnected,
  lost_card_error,
  lost_deadline,
  lost_unneeded,
  lost_quarantined,
  lost_memory_lost,
  puts_too_large,
  bytes_written,
  exists_keys,
  exists_present,
  exists_unanswered,
  exists_cached,
  deletes,
  deletes_failed,
  no_such_block,
  late_releases,
  regions_registered,
  regions_refused,
  regions_broken,
  sessions_opened,
  sessions_closed,
  sessions_refused,
  sessions_stalled,
  auth_failures,
  busy,
  no_memory,
  bad_requests,
  protocol_errors,
  busy_ns,
  count_,
};

inline constexpr std::size_t kCounters = static_cast<std::size_t>(Counter::count_);

[[nodiscard]] std::string_view name_of(Counter counter) noexcept;
[[nodiscard]] Counter miss_counter(kv::Mismatch mismatch) noexcept;

class Counters {
 public:
  void add(Counter counter, std::uint64_t amount = 1) noexcept {
    auto& value = cell(counter);
    // One writer: no locked instruction is needed.
    value.store(value.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t get(Counter counter) const noexcept {
    return values_[static_cast<std::size_t>(counter)].load(std::memory_order_relaxed);
  }

  // For who adds to it by himself.
  [[nodiscard]] std::atomic<std::uint64_t>& cell(Counter counter) noexcept {
    return values_[static_cast<std::size_t>(counter)];
  }

 private:
  std::array<std::atomic<std::uint64_t>, kCounters> values_{};
};

}  // namespace akv::gateway
