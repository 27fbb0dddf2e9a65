// The blocks of its worker's read cache that one session's client reads in place.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "gateway/read_cache.hpp"

namespace akv::gateway {

// Not thread-safe. What is still lent when it is destroyed goes back.
class Loans {
 public:
  // `most`: loans at a time; a block that is lent twice counts twice.
  Loans(ReadCache& cache, std::uint32_t most) noexcept : cache_(cache), most_(most) {}
  ~Loans();
  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;

  // False where the session, or its worker, has as many as may be.
  [[nodiscard]] bool lend(ReadCache::Slot slot);
  // Takes the blocks at these offsets of the cache's memory back: all, or none where one is not lent so
  // often.
  [[nodiscard]] bool give_back(std::span<const std::uint64_t> offsets);

 private:
  [[nodiscard]] bool count_down(std::uint64_t offset);

  ReadCache& cache_;
  std::uint32_t most_;
  std::uint32_t count_{0};
  std::unordered_map<ReadCache::Slot, std::uint32_t> lent_;  // how often
};

}  // namespace akv::gateway
