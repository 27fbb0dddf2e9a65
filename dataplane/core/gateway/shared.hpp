// What the workers of one engine have in common. Everything in it is constant or thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena/budget.hpp"
#include "arena/leases.hpp"
#include "gateway/block_lengths.hpp"
#include "gateway/counters.hpp"
#include "gateway/handshake.hpp"
#include "gateway/hot_blocks.hpp"
#include "gateway/limits.hpp"

namespace akv::gateway {

struct SharedState {
  // `cache_bytes`: what the workers' read caches may take of `memory_bytes` while sessions leave it; where
  // they lend blocks, what they have of it alone.
  SharedState(Limits with, Secrets known, std::uint64_t memory_bytes, std::size_t workers,
              std::uint64_t cache_bytes = 0, bool lends = false)
      : limits(with),
        secrets(std::move(known)),
        arena(arena::Budget::make(memory_bytes - (lends ? cache_bytes : 0))),
        inline_memory(arena::Budget::make(with.inline_bytes)),
        regions(arena::Budget::make(with.region_bytes)),
        leased(std::make_shared<std::atomic<std::uint64_t>>(0)),
        cache{.limit = cache_bytes / workers / arena::kPageBytes * arena::kPageBytes,
              .workers = workers,
              .arena = arena,
              .held = std::make_shared<std::atomic<std::uint64_t>>(0),
              .borrowed = std::make_shared<std::atomic<std::uint64_t>>(0),
              .lends = lends},
        counters(workers) {}

  const Limits limits;
  const Secrets secrets;
  const std::shared_ptr<arena::Budget> arena;          // of the sessions' shared memory
  const std::shared_ptr<arena::Budget> inline_memory;  // of frames and inline blocks
  const std::shared_ptr<arena::Budget> regions;        // of the memory that clients registered
  const arena::LeasedTotal leased;
  const CacheShare cache;  // of each worker
  BlockLengths lengths;
  Names names;
  std::vector<Counters> counters;  // by worker
  std::atomic<std::uint64_t> sessions{0};
  std::atomic<std::uint64_t> next_session{1};
};

// Every counter and gauge by name, summed over the workers.
[[nodiscard]] std::vector<std::pair<std::string, std::uint64_t>> collect(const SharedState& state);
// The same as a JSON object.
[[nodiscard]] std::string collect_json(const SharedState& state);

}  // namespace akv::gateway
