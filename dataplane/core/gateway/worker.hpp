// One worker: a thread with a reactor, its own sessions and its own lanes to the cards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/reactor.hpp"
#include "base/unique_fd.hpp"
#include "card/card_set.hpp"
#include "gateway/lane.hpp"
#include "gateway/plan.hpp"
#include "gateway/session.hpp"
#include "gateway/shared.hpp"

namespace akv::gateway {

// Everything runs on the worker's own thread, but for reactor().post().
class Worker final : private SessionHost, private BatchSink {
 public:
  // Both must be set before the reactor runs; `peers` are all workers, this one included, by index.
  Worker(std::size_t index, SharedState& shared);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  void connect(card::CardSet& cards, std::vector<Worker*> peers);

  [[nodiscard]] Reactor& reactor() noexcept { return reactor_; }

  void adopt(UniqueFd socket, bool local);
  void set_routing(std::shared_ptr<const Routing> routing);
  void shut_down_sessions();
  void close_sessions();
  // No lane has commands under way.
  [[nodiscard]] bool idle() const noexcept;

 private:
  // Runs tasks on another worker in the order given, also where that worker's mailbox is full for a while.
  class Courier {
   public:
    Courier(Reactor& own, Reactor& other) noexcept : own_(own), other_(other) {}
    ~Courier();
    Courier(const Courier&) = delete;
    Courier& operator=(const Courier&) = delete;
    void send(std::function<void()> task);

   private:
    void push();
    Reactor& own_;
    Reactor& other_;
    std::deque<std::function<void()>> unsent_;
    TimerId retry_{0};
  };

  void execute(std::shared_ptr<Batch> batch) override;
  void ended(Session& session) noexcept override;
  void memory_taken() override;
  [[nodiscard]] const HotBlocks* hot_blocks(std::uint64_t dialog_id) noexcept override;
  [[nodiscard]] std::uint32_t num_dbs() const noexcept override { return routing_->num_dbs; }
  void finished(const std::shared_ptr<Batch>& batch) noexcept override;
  void drained(const std::shared_ptr<Batch>& batch) noexcept override;

  [[nodiscard]] kv::SlotMask routable_slots() noexcept;
  [[nodiscard]] bool serves(std::string_view serial) noexcept;
  void run_on_lane(std::shared_ptr<Batch> batch, const std::string& serial);
  void fail(const std::shared_ptr<Batch>& batch, Why why);
  void finish_here(const std::shared_ptr<Batch>& batch);
  void drain_here(const std::shared_ptr<Batch>& batch);
  void tick();
  void wind_timer();
  void forget_unused_lanes();
  [[nodiscard]] bool is_same_card(const Routing& before, std::string_view serial) const noexcept;

  std::size_t index_;
  SharedState& shared_;
  Reactor reactor_;
  card::CardSet* cards_{nullptr};
  std::vector<Worker*> peers_;
  std::vector<std::unique_ptr<Courier>> couriers_;  // by worker
  std::shared_ptr<const Routing> routing_{std::make_shared<Routing>()};
  ReadCache cache_;
  std::uint64_t lanes_made_{0};
  std::map<std::string, std::unique_ptr<Lane>, std::less<>> lanes_;  // by serial
  std::vector<std::unique_ptr<Lane>> leaving_;                       // end what they have begun
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<std::unique_ptr<Session>> ended_;
  AfterEvent bury_;
  TimerId timer_{0};
};

}  // namespace akv::gateway
