// What one lane can answer without its card: from the worker's read cache, or by another GET's answer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/crc32c.hpp"
#include "gateway/batch.hpp"
#include "gateway/flights.hpp"
#include "gateway/generations.hpp"
#include "gateway/outcomes.hpp"
#include "gateway/read_cache.hpp"

namespace akv::gateway {

// What the workers of an engine share about names.
struct Names {
  KeyHasher hasher;
  Generations generations;
};

class HotBlocks {
 public:
  // `lane` is a number that no other lane of the worker has or had.
  HotBlocks(ReadCache& cache, Names& names, Outcomes& outcomes, std::uint64_t lane) noexcept
      : cache_(cache), names_(names), outcomes_(outcomes), lane_(lane) {}

  // Before the card is asked for a GET's entry. True: it needs no command, because it has its status now or
  // will get that of another entry.
  [[nodiscard]] bool settle_get(Batch& batch, std::uint32_t index);
  // EXISTS: true when the block is in the cache, so that a GET would find it. The entry has its status then.
  [[nodiscard]] bool settle_exists(Batch& batch, std::uint32_t index);

  // Calls `visit(slot)` for each key in turn with the present value's copy, as a GET would be given it now,
  // or nothing. What is looked at for a key is far away in memory, so it is asked for some keys ahead.
  template <typename Visit>
  void find_each(std::span<const kv::EngineKey> keys, const SpaceId& space, Visit visit) const {
    std::array<BlockName, kAhead> names;
    while (!keys.empty()) {
      const auto part = keys.first(std::min(kAhead, keys.size()));
      keys = keys.subspan(part.size());
      const auto named = std::span(names).first(part.size());
      for (std::size_t i = 0; i < part.size(); ++i)
        names[i] = name_of(part[i], space);
      ask_ahead(named);
      for (const BlockName& name : named)
        visit(find(name));
    }
  }

  // A block that arrives in its entry's memory, with room for its copy if it may be kept. What counts is the
  // checksum of the copy, which the entry's client can't write, or else of the entry's own memory.
  struct Arrival {
    std::span<const std::byte> own;
    std::optional<ReadCache::Slot> room;
    std::size_t taken{0};
    Crc32c crc{};  // of the bytes that were taken
  };
  [[nodiscard]] Arrival begin(const Batch& batch, std::uint32_t index, std::uint32_t length);
  // The block's first `until` bytes are in its entry's memory: takes those that were not taken yet.
  void take(Arrival& arrival, std::size_t until);
  // All of it was taken and is what was stored.
  void keep(Arrival& arrival, Batch& batch, std::uint32_t index);
  // Gives room back that keep() did not use.
  void discard(Arrival& arrival);

  // Answers those who waited for entries that have their status now, until more than `most` bytes were copied
  // to them. The others are answered by further calls.
  void land(std::size_t most);
  [[nodiscard]] bool landing() const noexcept { return !landing_.empty(); }
  // Batches with entries that must ask the card themselves after all.
  [[nodiscard]] std::vector<std::shared_ptr<Batch>> take_again() { return std::exchange(again_, {}); }

  // A command that may change the value is handed to the card; the card can't act on it any more.
  void begin_write(const Batch& batch, std::uint32_t index) noexcept;
  void end_write(const Batch& batch, std::uint32_t index) noexcept;

  // Bytes that settle_get() copied to clients since the last call.
  [[nodiscard]] std::uint64_t take_copied() noexcept { return std::exchange(copied_, 0); }

 private:
  // An answer on its way to those who waited for it.
  struct Landing {
    Landed landed;
    std::vector<EntryRef> waiting;
    std::size_t next{0};
  };

  static constexpr std::size_t kAhead = 32;

  void ask_ahead(std::span<const BlockName> names) const noexcept;
  [[nodiscard]] std::optional<ReadCache::Slot> find(const BlockName& name) const;
  [[nodiscard]] BlockName name_of(const kv::EngineKey& key, const SpaceId& space) const noexcept;
  [[nodiscard]] BlockName name_of(const Batch& batch, std::uint32_t index) const noexcept;
  void give(Batch& batch, std::uint32_t index, std::span<const std::byte> from);
  void begin_landing(Landed landed);
  void share(const EntryRef& waiting, const Landed& landed, std::size_t& copied);
  void ask_again(const EntryRef& entry);

  ReadCache& cache_;
  Names& names_;
  Outcomes& outcomes_;
  std::uint64_t lane_;
  Flights flights_;
  std::deque<Landing> landing_;
  std::vector<std::shared_ptr<Batch>> again_;
  std::uint64_t copied_{0};
};

}  // namespace akv::gateway
