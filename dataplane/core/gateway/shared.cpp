#include "gateway/shared.hpp"

#include <utility>

namespace akv::gateway {

std::vector<std::pair<std::string, std::uint64_t>> collect(const SharedState& state) {
  std::vector<std::pair<std::string, std::uint64_t>> all;
  for (std::size_t i = 0; i < kCounters; ++i) {
    const auto counter = static_cast<Counter>(i);
    std::uint64_t sum = 0;
    for (const Counters& worker : state.counters)
      sum += worker.get(counter);
    all.emplace_back(name_of(counter), sum);
  }
  all.emplace_back("sessions", state.sessions.load(std::memory_order_relaxed));
  all.emplace_back("leased_bytes", state.leased->load(std::memory_order_relaxed));
  all.emplace_back("arena_bytes", state.arena->used());
  all.emplace_back("arena_limit_bytes", state.arena->limit());
  all.emplace_back("cache_bytes", state.cache.held->load(std::memory_order_relaxed));
  all.emplace_back("cache_limit_bytes", state.cache.limit * state.cache.workers);
  all.emplace_back("borrowed_bytes", state.cache.borrowed->load(std::memory_order_relaxed));
  all.emplace_back("inline_bytes", state.inline_memory->used());
  all.emplace_back("region_bytes", state.regions->used());
  all.emplace_back("region_limit_bytes", state.regions->limit());
  return all;
}

std::string collect_json(const SharedState& state) {
  std::string text = "{";
  // Names are identifiers and values are numbers: nothing needs escaping.
  for (const auto& [name, value] : collect(state)) {
    text += text.size() > 1 ? ",\"" : "\"";
    text += name + "\":" + std::to_string(value);
  }
  return text + "}";
}

}  // namespace akv::gateway
