#include "card/trouble.hpp"

namespace akv::card {

std::string_view to_string(Trouble trouble) noexcept {
  switch (trouble) {
    case Trouble::none:
      return "";
    case Trouble::slow:
      return "slow";
    case Trouble::command_errors:
      return "command-errors";
    case Trouble::corrupt_values:
      return "corrupt-values";
    case Trouble::wrong_length:
      return "wrong-length";
    case Trouble::no_path:
      return "no-path";
    case Trouble::path_removed:
      return "path-removed";
    case Trouble::unreachable:
      return "unreachable";
    case Trouble::hung:
      return "hung";
    case Trouble::reset:
      return "reset";
    case Trouble::closed:
      return "closed";
    case Trouble::refused:
      return "refused";
    case Trouble::terminated:
      return "terminated";
    case Trouble::wrong_id:
      return "wrong-id";
    case Trouble::wrong_digest:
      return "wrong-digest";
    case Trouble::protocol_error:
      return "protocol-error";
    case Trouble::controller_fatal:
      return "controller-fatal";
    case Trouble::namespaces_changed:
      return "namespaces-changed";
    case Trouble::wrong_serial:
      return "wrong-serial";
    case Trouble::no_kv_namespace:
      return "no-kv-namespace";
    case Trouble::too_few_queues:
      return "too-few-queues";
    case Trouble::local_error:
      return "local-error";
  }
  return "";
}

CardState state_after(Trouble trouble) noexcept {
  switch (trouble) {
    case Trouble::wrong_serial:
      return CardState::wrong_serial;
    case Trouble::no_kv_namespace:
      return CardState::no_kv_namespace;
    case Trouble::too_few_queues:
      return CardState::too_few_queues;
    default:
      return CardState::backoff;
  }
}

Trouble trouble_of(fabric::Ending ending) noexcept {
  using fabric::Ending;
  switch (ending) {
    case Ending::asked:
      return Trouble::none;
    case Ending::unreachable:
      return Trouble::unreachable;
    case Ending::unanswered:
      return Trouble::hung;
    case Ending::reset:
      return Trouble::reset;
    case Ending::closed:
      return Trouble::closed;
    case Ending::wrong_id:
      return Trouble::wrong_id;
    case Ending::wrong_length:
      return Trouble::wrong_length;
    case Ending::wrong_digest:
      return Trouble::wrong_digest;
    case Ending::protocol:
      return Trouble::protocol_error;
    case Ending::terminated:
      return Trouble::terminated;
    case Ending::local:
      return Trouble::local_error;
  }
  return Trouble::none;
}

Trouble RecentTrouble::at(TimePoint now) const noexcept {
  constexpr auto kShownMs =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(kShown).count());
  const std::uint64_t last = last_.load(std::memory_order_relaxed);
  const bool over = milliseconds_of(now) > (last >> kTroubleBits) + kShownMs;
  return over ? Trouble::none : static_cast<Trouble>(last & ((1U << kTroubleBits) - 1));
}

}  // namespace akv::card
