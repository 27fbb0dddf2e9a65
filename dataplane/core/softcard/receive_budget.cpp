#include "softcard/receive_budget.hpp"

namespace akv::softcard {

bool ReceiveBudget::take(std::uint64_t bytes) noexcept {
  if (bytes > limit_ - used_) return false;
  used_ += bytes;
  return true;
}

void ReceiveBudget::give_back(std::uint64_t bytes) {
  used_ -= bytes;
  if (!line_.empty()) on_free_();
}

void ReceiveBudget::serve() {
  while (!line_.empty()) {
    auto* const first = line_.front();
    if (!first->use_budget()) return;
    std::erase(line_, first);
  }
}

}  // namespace akv::softcard
