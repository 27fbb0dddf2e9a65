// Whose turn it is at a card: namespaces share it equally, in a namespace its sessions, in a session its
// batches.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "gateway/batch.hpp"

namespace akv::gateway {

// Deficit round robin on two levels. Who is served is charged for it, and gives way when its quantum is used
// up: however many batches a session has in line, another one waits for at most one quantum, and the one
// command that overdrew it, of each other session. Not thread-safe.
class Turns {
 public:
  static constexpr std::int64_t kQuantum = 64 << 10U;  // of cost, about bytes

  // At the end of its session's line.
  void add(std::shared_ptr<Batch> batch);
  [[nodiscard]] bool empty() const noexcept { return spaces_.empty(); }
  // The batch whose turn it is. Not to be called when empty.
  [[nodiscard]] const std::shared_ptr<Batch>& current() noexcept { return flow().line.front(); }
  // It asked the card for something of this cost, and goes to the end of its session's line.
  void charge(std::int64_t cost);
  // It has nothing to ask for now.
  void retire();
  // Everything that is in line.
  [[nodiscard]] std::vector<std::shared_ptr<Batch>> all() const;
  void clear() noexcept { spaces_.clear(); }

 private:
  struct Flow {
    std::uint64_t session{0};
    std::int64_t credit{kQuantum};
    std::deque<std::shared_ptr<Batch>> line;
  };
  struct Space {
    SpaceId id{};
    std::int64_t credit{kQuantum};
    std::deque<Flow> flows;
  };

  [[nodiscard]] Flow& flow() noexcept { return spaces_.front().flows.front(); }
  [[nodiscard]] Space& space_of(const SpaceId& id);
  template <typename Item>
  static void pay(std::deque<Item>& ring, std::int64_t cost);

  std::deque<Space> spaces_;
};

}  // namespace akv::gateway
