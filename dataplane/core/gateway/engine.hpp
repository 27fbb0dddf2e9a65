// The whole native dataplane: listeners, workers and cards, behind the calls that the Python shell makes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "card/card_set.hpp"
#include "gateway/limits.hpp"
#include "gateway/listener.hpp"
#include "gateway/plan.hpp"
#include "gateway/shared.hpp"
#include "gateway/worker.hpp"

namespace akv::gateway {

struct EngineConfig {
  std::string backend{"kv-nvme"};  // or kv-memory
  std::string bind_address{"127.0.0.1"};
  std::uint16_t port{5557};
  std::string client_socket;
  std::uint64_t shared_memory_size{1U << 30U};  // bytes
  std::uint64_t read_cache_size{0};             // bytes of it for hot blocks, as far as clients leave them
  bool lend_cached_blocks{false};               // clients may read those in place; then they are theirs alone
  std::size_t workers{1};
  std::vector<int> cores;  // one a worker; empty: not pinned
  std::chrono::milliseconds io_timeout{5000};
  std::uint32_t io_timeout_strikes{3};
  card::DigestPolicy digests{card::DigestPolicy::off};  // of headers and data, kv-nvme
  Secrets secrets;
  std::string host_nqn;   // kv-nvme
  std::string host_uuid;  // kv-nvme
  bool busy_poll{false};
  bool short_wakeups{false};
  Limits limits{};
};

// What is known of one card of the plan.
struct CardView {
  card::CardSnapshot card;
  std::uint8_t slot{0};
  bool active{false};  // in the plan routable, and live
};

// Called by one control thread (the others may call counters()). start() and stop() each once.
class Engine {
 public:
  // Binds the sockets. Throws ListenError, or std::invalid_argument on a configuration that can't work.
  explicit Engine(EngineConfig config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Starts the threads and accepts clients. Throws std::system_error when a thread can't be had or pinned.
  void start();
  // Serves by `plan` from the moment this returns. False when that plan is served already. Throws
  // std::invalid_argument on a plan that can't be used, and nothing has changed; std::runtime_error when the
  // workers don't answer: some may serve by it, others by the one before, until a plan is applied again.
  bool apply_plan(Plan plan);
  [[nodiscard]] std::optional<Plan> plan() const;
  [[nodiscard]] std::vector<CardView> status() const;
  [[nodiscard]] std::vector<std::pair<std::string, std::uint64_t>> counters() const;
  // Answers what is outstanding within `patience`, then ends. False when cards still held buffers at the end.
  bool stop(std::chrono::milliseconds patience);

  [[nodiscard]] const std::string& backend() const noexcept { return config_.backend; }

 private:
  [[nodiscard]] std::unique_ptr<card::CardSet> make_cards();
  void accept(UniqueFd socket, bool local);
  void run_everywhere(const std::function<void(Worker&)>& task, std::chrono::milliseconds patience);
  void wait_no_sessions(std::chrono::milliseconds patience) const;
  void join();

  EngineConfig config_;
  SharedState shared_;
  UniqueFd tcp_socket_;
  UniqueFd unix_socket_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<card::CardSet> cards_;
  std::vector<std::unique_ptr<Listener>> listeners_;  // worker 0's
  std::size_t next_worker_{0};                        // worker 0's
  std::vector<std::thread> threads_;
  mutable std::mutex plan_mutex_;
  std::optional<Plan> plan_;
  bool settled_{true};  // every worker and card has plan_
};

}  // namespace akv::gateway
