// Private memory for frames and inline blocks, counted in a budget.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "arena/budget.hpp"

namespace akv::gateway {

class Payload {
 public:
  // Null when the budget or the machine has not that many bytes. The memory is not cleared, so what a client
  // only claims to send costs no pages.
  [[nodiscard]] static std::shared_ptr<Payload> make(arena::Budget& budget, std::size_t size) {
    auto reservation = budget.take(size);
    if (!reservation) return nullptr;
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[size]);
    if (memory == nullptr) return nullptr;
    return std::shared_ptr<Payload>(new Payload(std::move(reservation), std::move(memory), size));
  }

  [[nodiscard]] std::span<std::byte> bytes() noexcept { return {memory_.get(), size_}; }

 private:
  Payload(arena::Reservation reservation, std::unique_ptr<std::byte[]> memory, std::size_t size) noexcept
      : reservation_(std::move(reservation)), memory_(std::move(memory)), size_(size) {}

  arena::Reservation reservation_;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_;
};

}  // namespace akv::gateway
