#include "gateway/turns.hpp"

#include <algorithm>
#include <utility>

namespace akv::gateway {

Turns::Space& Turns::space_of(const SpaceId& id) {
  const auto found = std::ranges::find(spaces_, id, &Space::id);
  if (found != spaces_.end()) return *found;
  return spaces_.emplace_back(Space{.id = id, .credit = kQuantum, .flows = {}});
}

void Turns::add(std::shared_ptr<Batch> batch) {
  Space& space = space_of(batch->keyspace->space);
  const auto found = std::ranges::find(space.flows, batch->session_id, &Flow::session);
  Flow& flow =
      found != space.flows.end()
          ? *found
          : space.flows.emplace_back(Flow{.session = batch->session_id, .credit = kQuantum, .line = {}});
  flow.line.push_back(std::move(batch));
}

// Takes the cost from the first of the ring; one without credit gets its next quantum and gives way.
template <typename Item>
void Turns::pay(std::deque<Item>& ring, std::int64_t cost) {
  ring.front().credit -= cost;
  if (ring.size() == 1) {
    // Nobody waits: nothing is owed.
    ring.front().credit = std::max<std::int64_t>(ring.front().credit, 1);
    return;
  }
  while (ring.front().credit <= 0) {
    ring.front().credit += kQuantum;
    Item first = std::move(ring.front());
    ring.pop_front();
    ring.push_back(std::move(first));
  }
}

void Turns::charge(std::int64_t cost) {
  auto& line = flow().line;
  if (line.size() > 1) {
    line.push_back(std::move(line.front()));
    line.pop_front();
  }
  pay(spaces_.front().flows, cost);
  pay(spaces_, cost);
}

void Turns::retire() {
  auto& flows = spaces_.front().flows;
  flows.front().line.pop_front();
  if (!flows.front().line.empty()) return;
  flows.pop_front();
  if (flows.empty()) spaces_.pop_front();
}

std::vector<std::shared_ptr<Batch>> Turns::all() const {
  std::vector<std::shared_ptr<Batch>> batches;
  for (const Space& space : spaces_) {
    for (const Flow& flow : space.flows)
      batches.insert(batches.end(), flow.line.begin(), flow.line.end());
  }
  return batches;
}

}  // namespace akv::gateway
