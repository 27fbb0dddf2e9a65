// GETs that wait for another GET of the same block, so that the card is asked once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gateway/block_name.hpp"

namespace akv::gateway {

struct Batch;

// One entry of a batch.
struct EntryRef {
  std::shared_ptr<Batch> batch;
  std::uint32_t index{0};
};

// A question to the card, by the entry that asks it.
struct Flight {
  BlockName name;
  std::uint64_t generation{0};  // when the card was asked; who comes after a write must ask again
  std::vector<EntryRef> waiting;
};

// Not thread-safe: one lane's.
class Flights {
 public:
  enum class Part : std::uint8_t { leads, follows, alone };

  // What an entry does that wants the block: asks the card for all who come after, waits for one that has
  // asked, or asks for itself alone where others can't use the answer.
  [[nodiscard]] Part join(const BlockName& name, std::uint64_t generation, EntryRef entry) {
    const auto [place, fresh] = flights_.try_emplace(name.hash);
    Flight& flight = place->second;
    if (fresh) {
      flight.name = name;
      flight.generation = generation;
      return Part::leads;
    }
    if (flight.generation != generation || flight.name != name) return Part::alone;
    flight.waiting.push_back(std::move(entry));
    return Part::follows;
  }
  // Of an entry that leads.
  [[nodiscard]] std::uint64_t generation(const BlockName& name) const {
    return flights_.at(name.hash).generation;
  }
  // The leader has its answer.
  [[nodiscard]] Flight land(std::uint64_t hash) { return std::move(flights_.extract(hash).mapped()); }

 private:
  std::unordered_map<std::uint64_t, Flight> flights_;  // by the hash of the name, which is keyed already
};

}  // namespace akv::gateway
