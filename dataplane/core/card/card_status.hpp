// State of one card as others see it, and the log line at each change.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "card/card_set.hpp"

namespace akv::card {

// Written by the card's controller, read by any thread. A card that is tried again and again with the same
// outcome is logged once: attempts (connecting) are not logged after the first, and a state is only when it
// or its reason differs from the one logged last.
class CardStatus {
 public:
  explicit CardStatus(std::string serial) : serial_(std::move(serial)) {}

  void set_path(const std::string& path);
  void set_connecting();
  // `remark` is for the log alone.
  void set_live(const std::string& remark);
  // Out of service; `reason` is kept as last_error.
  void set_trouble(Trouble trouble, const std::string& reason);
  void set_stopped();
  void count_attempt();
  void count_reconnect();
  // Fills state, trouble, last_error, path, attempts and reconnects.
  void add_to(CardSnapshot& snapshot) const;

 private:
  void set(CardState state, std::optional<Trouble> trouble, const std::string& reason);
  [[nodiscard]] bool worth_a_line(CardState state, const std::string& reason) const;

  const std::string serial_;
  mutable std::mutex mutex_;
  CardState state_{CardState::connecting};
  Trouble trouble_{Trouble::none};  // stays while it is tried again
  std::string last_error_;
  std::string path_;
  std::uint64_t attempts_{0};
  std::uint64_t reconnects_{0};
  bool logged_{false};
  CardState logged_state_{CardState::connecting};
  std::string logged_reason_;
};

}  // namespace akv::card
