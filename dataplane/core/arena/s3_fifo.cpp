#include "arena/s3_fifo.hpp"

#include <algorithm>

namespace akv::arena {
namespace {

constexpr std::uint64_t kSmallShare = 2;  // one part in so many is `small`
constexpr std::size_t kLeastMemory = 64;  // hashes that are remembered in any case

}  // namespace

void S3Fifo::insert(Slot slot, std::uint64_t hash, std::uint32_t weight) {
  if (slot >= nodes_.size()) nodes_.resize(std::size_t{slot} + 1);
  nodes_[slot] = {.hash = hash, .weight = weight, .in_main = remembered(hash)};
  append(slot);
}

void S3Fifo::hit(Slot slot) noexcept {
  Node& node = nodes_[slot];
  node.uses = std::min<std::uint8_t>(kMostUses, static_cast<std::uint8_t>(node.uses + 1));
}

void S3Fifo::erase(Slot slot) noexcept {
  unlink(slot);
}

std::optional<S3Fifo::Slot> S3Fifo::evict() {
  while (small_.count != 0 && (small_.weight >= capacity_ / kSmallShare || main_.count == 0)) {
    if (const auto slot = evict_small()) return slot;
  }
  if (main_.count != 0) return evict_main();
  return small_.count != 0 ? evict_small() : std::nullopt;
}

// Nothing when the oldest block was used and moved on instead.
std::optional<S3Fifo::Slot> S3Fifo::evict_small() {
  const Slot slot = small_.oldest;
  Node& node = nodes_[slot];
  unlink(slot);
  if (node.uses == 0) {
    remember(node.hash);
    return slot;
  }
  node.uses = 0;
  node.in_main = true;
  append(slot);
  return std::nullopt;
}

// Ends: each block that stays has lost one of its uses.
S3Fifo::Slot S3Fifo::evict_main() noexcept {
  while (true) {
    const Slot slot = main_.oldest;
    Node& node = nodes_[slot];
    unlink(slot);
    if (node.uses == 0) return slot;
    --node.uses;
    append(slot);
  }
}

void S3Fifo::append(Slot slot) noexcept {
  Node& node = nodes_[slot];
  Queue& queue = queue_of(node);
  node.newer = kNone;
  node.older = queue.newest;
  (queue.newest == kNone ? queue.oldest : nodes_[queue.newest].newer) = slot;
  queue.newest = slot;
  queue.weight += node.weight;
  ++queue.count;
}

void S3Fifo::unlink(Slot slot) noexcept {
  const Node& node = nodes_[slot];
  Queue& queue = queue_of(node);
  (node.older == kNone ? queue.oldest : nodes_[node.older].newer) = node.newer;
  (node.newer == kNone ? queue.newest : nodes_[node.newer].older) = node.older;
  queue.weight -= node.weight;
  --queue.count;
}

void S3Fifo::remember(std::uint64_t hash) {
  when_[hash] = first_number_ + past_.size();
  past_.push_back(hash);
  const std::size_t most = std::max(kLeastMemory, size());
  while (past_.size() > most) {
    const auto found = when_.find(past_.front());
    // A newer note of the same hash stays.
    if (found != when_.end() && found->second == first_number_) when_.erase(found);
    past_.pop_front();
    ++first_number_;
  }
}

bool S3Fifo::remembered(std::uint64_t hash) {
  return when_.erase(hash) != 0;
}

}  // namespace akv::arena
