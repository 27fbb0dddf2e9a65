#include "card/spec.hpp"

#include <set>
#include <stdexcept>

#include "nvme/connect.hpp"

namespace akv::card {
namespace {

constexpr std::size_t kMaxSerial = 20;  // bytes of the SN field of Identify Controller

void check_spec(const CardSpec& card) {
  const auto refuse = [&](const std::string& what) {
    throw std::invalid_argument("card \"" + card.serial + "\": " + what);
  };
  if (card.serial.empty() || card.serial.size() > kMaxSerial) refuse("the serial must have 1 to 20 bytes");
  if (card.nqn.empty() || card.nqn.size() > nvme::kNqnMaxBytes) refuse("the NQN must have 1 to 223 bytes");
}

}  // namespace

void check_specs(const std::vector<CardSpec>& cards) {
  std::set<std::string_view> serials;
  for (const CardSpec& card : cards) {
    check_spec(card);
    if (!serials.insert(card.serial).second) {
      throw std::invalid_argument("card \"" + card.serial + "\" is listed twice");
    }
  }
}

std::string_view to_string(CardState state) noexcept {
  switch (state) {
    case CardState::connecting:
      return "connecting";
    case CardState::live:
      return "live";
    case CardState::backoff:
      return "backoff";
    case CardState::wrong_serial:
      return "wrong-serial";
    case CardState::no_kv_namespace:
      return "no-kv-namespace";
    case CardState::too_few_queues:
      return "too-few-queues";
    case CardState::stopped:
      return "stopped";
  }
  return "stopped";
}

}  // namespace akv::card
