#include "gateway/plan.hpp"

#include <set>
#include <span>
#include <stdexcept>
#include <string_view>

#include "kv/keys.hpp"

namespace akv::gateway {
namespace {

void check_slots(const Plan& plan) {
  std::set<std::string_view> serials;
  int last = -1;
  for (const SlotPlan& entry : plan.slots) {
    const std::string where = "slot " + std::to_string(entry.slot);
    if (entry.slot >= kv::kSlots) throw std::invalid_argument(where + " is not one of 0 to 7");
    if (int{entry.slot} <= last) throw std::invalid_argument(where + " is not in ascending order");
    last = entry.slot;
    if (entry.card.serial.empty()) throw std::invalid_argument(where + " has a card without a serial number");
    if (!serials.insert(entry.card.serial).second) {
      throw std::invalid_argument(where + " has serial " + entry.card.serial +
                                  ", which another slot has too");
    }
  }
}

std::string fingerprint_of(const Plan& plan) {
  std::vector<kv::PlannedCard> cards;
  for (const SlotPlan& entry : plan.slots)
    cards.push_back({.slot = entry.slot, .serial = entry.card.serial});
  return kv::plan_fingerprint(plan.num_dbs, cards);
}

}  // namespace

void check_plan(const Plan& plan) {
  if (plan.num_dbs == 0) throw std::invalid_argument("num_dbs is 0, it must be at least 1");
  check_slots(plan);
  const std::string own = fingerprint_of(plan);
  if (plan.fingerprint != own) {
    throw std::invalid_argument("fingerprint " + plan.fingerprint + " is not that of the plan's slots, " +
                                own);
  }
}

const RoutableCard* Routing::find(std::string_view serial) const noexcept {
  for (const auto& card : routable) {
    if (card && card->serial == serial) return &*card;
  }
  return nullptr;
}

Routing routing_of(const Plan& plan) {
  Routing routing{.num_dbs = plan.num_dbs, .routable = {}};
  for (const SlotPlan& entry : plan.slots) {
    if (!entry.routable) continue;
    routing.routable[entry.slot] =
        RoutableCard{.serial = entry.card.serial, .nqn = entry.card.nqn, .uuid = entry.card.uuid};
  }
  return routing;
}

}  // namespace akv::gateway
