#include "card/card_status.hpp"

#include "base/events.hpp"
#include "card/trouble.hpp"

namespace akv::card {
namespace {

Level level_of(CardState state) noexcept {
  const bool good = state == CardState::live || state == CardState::connecting || state == CardState::stopped;
  return good ? Level::info : Level::warning;
}

}  // namespace

void CardStatus::set_connecting() {
  set(CardState::connecting, std::nullopt, "");
}

void CardStatus::set_live(const std::string& remark) {
  set(CardState::live, Trouble::none, remark);
}

void CardStatus::set_trouble(Trouble trouble, const std::string& reason) {
  set(state_after(trouble), trouble, reason);
}

void CardStatus::set_stopped() {
  set(CardState::stopped, Trouble::none, "");
}

void CardStatus::set_path(const std::string& path) {
  const std::lock_guard lock(mutex_);
  path_ = path;
}

void CardStatus::count_attempt() {
  const std::lock_guard lock(mutex_);
  ++attempts_;
}

void CardStatus::count_reconnect() {
  const std::lock_guard lock(mutex_);
  ++reconnects_;
}

bool CardStatus::worth_a_line(CardState state, const std::string& reason) const {
  if (!logged_) return true;
  if (state == CardState::connecting) return false;
  return state != logged_state_ || reason != logged_reason_;
}

void CardStatus::set(CardState state, std::optional<Trouble> trouble, const std::string& reason) {
  std::string path;
  std::string_view named;
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
    if (trouble) trouble_ = *trouble;
    if (state != CardState::live && !reason.empty()) last_error_ = reason;
    if (!worth_a_line(state, reason)) return;
    logged_ = true;
    logged_state_ = state;
    logged_reason_ = reason;
    path = path_;
    named = to_string(trouble_);
  }
  log_event(level_of(state), "card_state",
            {{"serial", serial_},
             {"state", to_string(state)},
             {"path", path},
             {"reason", reason},
             {"trouble", named}});
}

void CardStatus::add_to(CardSnapshot& snapshot) const {
  const std::lock_guard lock(mutex_);
  snapshot.state = state_;
  snapshot.trouble = trouble_;
  snapshot.last_error = last_error_;
  snapshot.path = path_;
  snapshot.attempts = attempts_;
  snapshot.reconnects = reconnects_;
}

}  // namespace akv::card
