// The way of one worker to one card: batches stand in line, a bounded number of commands is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/reactor.hpp"
#include "card/card_set.hpp"
#include "gateway/batch.hpp"
#include "gateway/command.hpp"
#include "gateway/hot_blocks.hpp"
#include "gateway/limits.hpp"
#include "gateway/outcomes.hpp"
#include "gateway/steps.hpp"
#include "gateway/turns.hpp"

namespace akv::gateway {

// Told about batches by the worker that executes them, never from inside Lane::submit().
class BatchSink {
 public:
  // Every entry has its status. Called once.
  virtual void finished(const std::shared_ptr<Batch>& batch) noexcept = 0;
  // No command refers to the batch's memory any more. Called once, after finished().
  virtual void drained(const std::shared_ptr<Batch>& batch) noexcept = 0;

 protected:
  ~BatchSink() = default;
};

// What a lane is given by its worker; outlives it.
struct LaneContext {
  Reactor& reactor;
  card::CardSet& cards;
  std::size_t worker;
  Counters& counters;
  const Limits& limits;
  BatchSink& sink;
  ReadCache& cache;
  Names& names;
  std::uint64_t lane;  // a number that no other lane of the worker has or had
};

// Sessions take turns, and in a session its batches, so that large ones do not hold up the small.
class Lane final : public CommandOwner {
 public:
  Lane(const LaneContext& context, std::string serial);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Takes the batch; `unresolved` counts its entries without a status, at least one.
  void submit(std::shared_ptr<Batch> batch);
  // Ends what waits too long, or waits for nothing. To be called every now and then while not idle().
  void tick();
  // Nothing waits and no command holds buffers. A lane must be idle when it is destroyed.
  [[nodiscard]] bool idle() const noexcept {
    return turns_.empty() && refused_ == nullptr && inflight_ == 0 && !outcomes_.any_landed() &&
           !hot_.landing() && !outcomes_.any_done();
  }

  // What of this card's blocks needs no command.
  [[nodiscard]] const HotBlocks& hot() const noexcept { return hot_; }

  // The card's answers, and what comes before them.
  void sending(Command& command) noexcept override;
  void arrived(Command& command, std::uint32_t bytes) noexcept override;
  void completed(Command& command, const card::IoResult& result) noexcept override;
  void released(Command& command) noexcept override;

 private:
  void turn();
  void pump();
  void settle();
  [[nodiscard]] bool serve(card::IoQueue& queue, std::int64_t& local_work);
  [[nodiscard]] bool serve_here(Batch& batch, const Work& work);
  void charge_here(const Entry& entry, std::uint32_t max_value_bytes, std::int64_t& local_work);
  void go_on_later();
  [[nodiscard]] bool send(card::IoQueue& queue, Command& command);
  [[nodiscard]] bool retry_refused(card::IoQueue& queue);
  [[nodiscard]] bool has_room() const noexcept;
  void line_up(std::shared_ptr<Batch> batch);
  void fail_all(Why why);
  void blame_card() noexcept;
  void fail_refused(Why why);
  void let_go(Command& command) noexcept;
  void report(const std::shared_ptr<Batch>& batch);
  [[nodiscard]] Command& acquire(std::shared_ptr<Batch> batch, const Work& work);
  void recycle(Command& command) noexcept;

  LaneContext context_;
  std::string serial_;
  Outcomes outcomes_;
  HotBlocks hot_;
  Turns turns_;
  std::vector<std::unique_ptr<Command>> commands_;  // all that were ever needed at once
  std::vector<Command*> unused_;
  Command* refused_{nullptr};  // prepared, but the card's queue was full
  std::uint32_t inflight_{0};  // commands not yet released
  std::uint64_t inflight_bytes_{0};
  AfterEvent after_;
  TimerId later_{0};
};

}  // namespace akv::gateway
