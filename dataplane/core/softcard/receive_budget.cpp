#include "softcard/receive_budget.hpp"

namespace akv::softcard {
namespace {

constexpr std::uint64_t kShares = 4;  // no connection holds more than this part of the limit

}  // namespace

bool ReceiveBudget::take(std::uint64_t bytes, std::uint64_t held) noexcept {
  const bool within = held + bytes <= limit_ / kShares && used_ + bytes <= limit_;
  if (held != 0 && !within) return false;
  used_ += bytes;
  return true;
}

void ReceiveBudget::give_back(std::uint64_t bytes) {
  used_ -= bytes;
  if (!line_.empty()) on_free_();
}

void ReceiveBudget::serve() {
  // A turn may end connections, which then leave the line; they are destroyed only after this event.
  for (auto* const waiter : std::deque(line_)) {
    if (waiter->use_budget()) leave_line(*waiter);
  }
}

}  // namespace akv::softcard
