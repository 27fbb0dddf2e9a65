// The slot plan as the dataplane serves it (protos/akv/v1/plan.proto).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "card/card_set.hpp"
#include "kv/hashing.hpp"

namespace akv::gateway {

struct SlotPlan {
  std::uint8_t slot{0};
  bool routable{false};
  card::CardSpec card;
};

// Checked: slots ascending and below 8, serials distinct, num_dbs at least 1.
struct Plan {
  std::string cluster_uuid;
  std::uint64_t sequence{0};
  std::uint32_t num_dbs{1};
  std::string fingerprint;
  std::vector<SlotPlan> slots;
};

// Throws std::invalid_argument with what is wrong, and with which slot.
void check_plan(const Plan& plan);

// A card that takes dialogs. Where any of it changes, other values may be on it than before.
struct RoutableCard {
  std::string serial;
  std::string nqn;
  std::string uuid;

  bool operator==(const RoutableCard&) const = default;
};

// What workers need of it; immutable, swapped as a whole.
struct Routing {
  std::uint32_t num_dbs{1};
  std::array<std::optional<RoutableCard>, kv::kSlots> routable;  // by slot

  // Null: no slot has it.
  [[nodiscard]] const RoutableCard* find(std::string_view serial) const noexcept;
};

[[nodiscard]] Routing routing_of(const Plan& plan);

}  // namespace akv::gateway
