// Gives entries their status, and counts what became of them and why.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "card/io.hpp"
#include "gateway/batch.hpp"
#include "gateway/counters.hpp"

namespace akv::gateway {

// Why an entry got no answer from a card, or a bad one.
enum class Why : std::uint8_t {
  no_card,       // no card is routable
  not_found,     // the card has no such key
  too_large,     // more than the card takes
  no_space,      // the card is full and does not evict
  timeout,       // io_timeout_ms went by
  disconnected,  // the card left service
  card_error,    // another error of the card
  deadline,      // the request waited too long behind others
  quarantined,   // a late command may still touch the block
  memory_lost,   // the client shrank the file that its region is in
  unneeded,      // nobody waits for it
};

[[nodiscard]] Why why_of(card::IoStatus status) noexcept;

// An entry that others wait for has its status.
struct Landed {
  std::shared_ptr<Batch> batch;
  std::uint32_t index{0};
  Counter reason{Counter::miss_not_found};  // of a miss
  bool is_of_block{true};  // the card or the value is the reason, so that it is one for others too
};

class Outcomes {
 public:
  explicit Outcomes(Counters& counters) noexcept : counters_(counters) {}

  void stored(Batch& batch, std::uint32_t index);
  void hit(Batch& batch, std::uint32_t index, std::uint32_t length);
  void too_small(Batch& batch, std::uint32_t index, std::uint32_t length);
  void mismatch(Batch& batch, std::uint32_t index, kv::Mismatch what);
  void miss(Batch& batch, std::uint32_t index, Counter reason);
  void present(Batch& batch, std::uint32_t index);
  void absent(Batch& batch, std::uint32_t index);
  void removed(Batch& batch, std::uint32_t index);
  // Miss, or not stored, as the batch's operation has it.
  void fail(Batch& batch, std::uint32_t index, Why why);
  // All entries that were not begun, and those that wait for further segments.
  void fail_rest(Batch& batch, Why why) { fail_behind(batch, 0, why); }
  // The same, but for those before entry `first`.
  void fail_behind(Batch& batch, std::uint32_t first, Why why);

  // Whether a value since the last call was not what any gateway stores, so that its card is to blame.
  [[nodiscard]] bool take_damaged() noexcept { return std::exchange(damaged_, false); }

  [[nodiscard]] Counters& counters() noexcept { return counters_; }
  // Those who waited for an entry of the batch have been answered, so that its memory may be used again.
  void given(Batch& batch);
  // Adds the batch to those that are done when nothing of it is open any more.
  void settle(Batch& batch);
  // The batches that are done since the last call: every entry has its status, and but for late commands
  // nothing touches their memory.
  [[nodiscard]] std::vector<std::shared_ptr<Batch>> take_done() { return std::exchange(done_, {}); }
  [[nodiscard]] bool any_done() const noexcept { return !done_.empty(); }
  // The entries with `leads` that have their status since the last call.
  [[nodiscard]] std::vector<Landed> take_landed() { return std::exchange(landed_, {}); }
  [[nodiscard]] bool any_landed() const noexcept { return !landed_.empty(); }

 private:
  void resolve(Batch& batch, std::uint32_t index, wire::EntryStatus status,
               Counter reason = Counter::miss_not_found);
  void lose(Batch& batch, std::uint32_t index, Why why);
  void fail_listed(Batch& batch, std::vector<std::uint32_t>& list, std::uint32_t first, Why why);

  Counters& counters_;
  bool damaged_{false};
  std::vector<std::shared_ptr<Batch>> done_;
  std::vector<Landed> landed_;
};

}  // namespace akv::gateway
