// The workers' own tables of queues, filled by tasks that the control thread posts.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/reactor.hpp"
#include "card/card_set.hpp"

namespace akv::card {

// Posts from a control thread that may wait: tries again until the mailbox takes the task, for five seconds.
// Throws std::runtime_error after that: the worker's loop stands still.
void post_patiently(Reactor& reactor, const std::function<void()>& task);

// For destructors: stops within five seconds, or logs that it could not.
void stop_at_destruction(CardSet& set) noexcept;

// Card objects by serial, one table for each worker, touched on that worker's thread alone. Shared by pointer
// with the posted tasks, so it outlives a set that is destroyed while tasks wait.
template <typename Card>
class Registry {
 public:
  explicit Registry(std::size_t workers) : tables_(workers) {}

  [[nodiscard]] Card* find(std::size_t worker, std::string_view serial) const noexcept {
    const auto& table = tables_[worker].cards;
    const auto found = table.find(serial);
    return found == table.end() ? nullptr : found->second.get();
  }
  void insert(std::size_t worker, const std::string& serial, std::shared_ptr<Card> card) {
    tables_[worker].cards.insert_or_assign(serial, std::move(card));
  }
  // Leaves a newer card of the same serial alone.
  void erase(std::size_t worker, const std::string& serial, const Card* card) noexcept {
    auto& table = tables_[worker].cards;
    const auto found = table.find(serial);
    if (found != table.end() && found->second.get() == card) table.erase(found);
  }

 private:
  struct alignas(64) Table {
    std::map<std::string, std::shared_ptr<Card>, std::less<>> cards;
  };
  std::vector<Table> tables_;
};

}  // namespace akv::card
