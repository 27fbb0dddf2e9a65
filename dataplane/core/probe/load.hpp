// A number of commands that are always outstanding on one queue, for a while.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "probe/target.hpp"

namespace akv::probe {

enum class Op : std::uint8_t { read, write };

struct LoadConfig {
  Op op{Op::read};
  std::uint32_t io_bytes{65536};
  std::uint32_t depth{1};
  std::uint64_t span_bytes{0};          // of the target that is used, again and again
  std::uint64_t max_inflight_bytes{0};  // payload on the wire; 0: depth alone is the bound
  std::chrono::milliseconds duration{1000};
};

struct LoadResult {
  std::uint64_t ios{0};
  std::uint64_t errors{0};
  std::chrono::nanoseconds elapsed{0};
  std::chrono::nanoseconds cpu{0};          // user and system time of this process
  std::vector<std::uint32_t> latencies_us;  // sorted, of at most a million commands
};

// The caller has checked the sizes against the target's facts. Throws ProbeError when the connection ends or
// a command stays unanswered for ten seconds.
[[nodiscard]] LoadResult run_load(Reactor& reactor, Target& target, const LoadConfig& config);

// Writes each place of the span once, so that reads find something. Throws ProbeError likewise.
void fill(Reactor& reactor, Target& target, const LoadConfig& config);

}  // namespace akv::probe
