// Life of one card: connects, identifies, keeps alive, takes out of service, tries again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/backoff.hpp"
#include "base/reactor.hpp"
#include "card/bring_up.hpp"
#include "card/card_set.hpp"
#include "fabric/tcp_queue_pair.hpp"

namespace akv::card {

class NvmeCard;

// The admin queue pair and the card's state. Used on the owner's thread alone; queues of other workers are
// reached through NvmeCard::post(). Each attempt to connect has a generation, so that news of an older one is
// told apart.
class Controller final : private fabric::QueuePairClient {
 public:
  Controller(NvmeCard& card, std::function<void()> on_stopped);
  ~Controller();

  void start(std::vector<CardPath> paths);
  // Keeps the connection when its path is still listed; else connects anew at once.
  void set_paths(std::vector<CardPath> paths);
  // Ends with on_stopped(), when every socket of the card is closed.
  void stop();

  // A command of worker `worker`'s queue passed its deadline: Abort is sent if the controller takes one more.
  void abort(std::size_t worker, std::uint64_t generation, std::uint16_t cid);
  // News of worker `worker`'s queue.
  void on_queue_open(std::size_t worker, std::uint64_t generation);
  void on_queue_lost(std::size_t worker, std::uint64_t generation, Trouble trouble,
                     const std::string& reason);

 private:
  enum class Phase : std::uint8_t { idle, admin, queues, live, closing, waiting, stopped };

  void on_open() noexcept override;
  void on_response(std::uint32_t tag, const fabric::Response& response) noexcept override;
  void on_closed(fabric::Ending how, const std::string& reason) noexcept override;

  void attempt();
  [[nodiscard]] std::optional<fabric::TcpAddress> next_address();
  void send(const fabric::Command& command, std::uint32_t tag);
  void on_bring_up(const fabric::Response& response);
  void open_queues();
  void on_queue_answer();
  void go_live();
  void keep_alive_tick();
  void tell_trouble();
  void on_keep_alive(nvme::Status status);
  void ask_for_status();
  void on_controller_status(const nvme::Cqe& cqe);
  void on_async_event(const fabric::Response& response);
  void read_log_page(std::uint8_t page);
  void fail(Trouble trouble, const std::string& reason);
  void close_all(const std::string& reason);
  void on_queue_shut(std::uint64_t generation);
  void wait_for_next_attempt();
  [[nodiscard]] std::chrono::milliseconds next_delay();
  void cancel_timers();
  void drop_admin();

  NvmeCard& card_;
  Reactor& reactor_;
  const NvmeCardConfig& config_;
  std::function<void()> on_stopped_;
  Backoff backoff_;

  Phase phase_{Phase::idle};
  bool stopping_{false};
  bool retry_at_once_{false};
  std::vector<CardPath> paths_;
  std::size_t path_index_{0};
  std::size_t tried_paths_{0};  // since the card was live last
  std::optional<CardPath> path_;
  std::uint64_t generation_{0};
  bool was_live_{false};
  TimePoint live_since_{};

  std::optional<fabric::TcpAddress> address_;
  std::shared_ptr<fabric::QueuePair> admin_;
  std::unique_ptr<BringUp> bring_up_;
  std::size_t queues_asked_{0};
  std::size_t queues_answered_{0};
  std::size_t queues_to_shut_{0};
  std::uint64_t connected_mask_{0};
  std::string refusal_;

  TimerId attempt_timer_{0};  // the whole attempt, from connect to live
  TimerId step_timer_{0};     // readiness of the controller, or the pause before an attempt
  TimerId keep_alive_timer_{0};
  std::optional<TimePoint> keep_alive_sent_;
  bool status_asked_{false};
  bool event_request_due_{false};
  std::uint32_t aborts_outstanding_{0};
  Trouble told_trouble_{Trouble::none};  // of the card in service
  std::array<std::byte, 512> log_page_{};
};

}  // namespace akv::card
