#include "gateway/engine.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <system_error>

#include "base/events.hpp"
#include "card/outstanding.hpp"
#include "kv/keys.hpp"

namespace akv::gateway {
namespace {

constexpr auto kTurnPatience = std::chrono::milliseconds(5000);
// Shorter than the control process waits, so that it hears why.
constexpr auto kPlanPatience = std::chrono::milliseconds(1500);
constexpr auto kWaitStep = std::chrono::milliseconds(5);

// Prepares libsodium before any member is made.
EngineConfig checked(EngineConfig config) {
  kv::init_crypto();
  if (config.workers == 0) throw std::invalid_argument("thread_pool_size must be at least 1");
  if (!config.cores.empty() && config.cores.size() != config.workers) {
    throw std::invalid_argument("there must be one core for each worker");
  }
  if (config.read_cache_size > config.shared_memory_size) {
    throw std::invalid_argument("read_cache_size must be at most shared_memory_size");
  }
  if (config.lend_cached_blocks && config.read_cache_size == config.shared_memory_size) {
    throw std::invalid_argument("lend_cached_blocks needs memory beside read_cache_size");
  }
  if (config.backend != "kv-nvme" && config.backend != "kv-memory") {
    throw std::invalid_argument("storage_backend " + config.backend + " is not in this build");
  }
  config.limits.io_timeout = config.io_timeout;
  return config;
}

void pin(std::thread& thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  const int error = ::pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
  if (error != 0) {
    throw std::system_error(error, std::generic_category(),
                            "core " + std::to_string(core) + " can't be used");
  }
}

std::vector<card::CardSpec> specs_of(const Plan& plan) {
  std::vector<card::CardSpec> specs;
  for (const SlotPlan& entry : plan.slots) {
    // A card that the cluster knows no path to keeps its slot and can't be connected.
    if (!entry.card.paths.empty()) specs.push_back(entry.card);
  }
  return specs;
}

bool same(const Plan& left, const Plan& right) {
  const auto same_slot = [](const SlotPlan& a, const SlotPlan& b) {
    return a.slot == b.slot && a.routable == b.routable && a.card == b.card;
  };
  return left.cluster_uuid == right.cluster_uuid && left.sequence == right.sequence &&
         left.num_dbs == right.num_dbs &&
         std::equal(left.slots.begin(), left.slots.end(), right.slots.begin(), right.slots.end(), same_slot);
}

}  // namespace

Engine::Engine(EngineConfig config)
    : config_(checked(std::move(config))),
      shared_(config_.limits, config_.secrets, config_.shared_memory_size, config_.workers,
              config_.read_cache_size, config_.lend_cached_blocks),
      tcp_socket_(listen_tcp(config_.bind_address, config_.port)),
      unix_socket_(listen_unix(config_.client_socket)) {
  std::vector<Worker*> peers;
  for (std::size_t i = 0; i < config_.workers; ++i) {
    workers_.push_back(std::make_unique<Worker>(i, shared_));
    Reactor& reactor = workers_.back()->reactor();
    reactor.set_waiting(config_.busy_poll ? Waiting::poll : Waiting::adaptive);
    if (config_.short_wakeups) reactor.shorten_wakeups();
    peers.push_back(workers_.back().get());
  }
  cards_ = make_cards();
  for (Worker* const worker : peers)
    worker->connect(*cards_, peers);
}

Engine::~Engine() {
  if (!threads_.empty()) stop(std::chrono::milliseconds(0));
}

std::unique_ptr<card::CardSet> Engine::make_cards() {
  std::vector<Reactor*> reactors;
  for (const auto& worker : workers_)
    reactors.push_back(&worker->reactor());
  if (config_.backend == "kv-memory") return card::make_memory_card_set(std::move(reactors));
  card::NvmeCardConfig cards;
  cards.host_nqn = config_.host_nqn;
  cards.host_uuid = config_.host_uuid;
  cards.io_timeout = config_.io_timeout;
  cards.io_timeout_strikes = config_.io_timeout_strikes;
  // The lanes bound what is under way, and may pass their bound by one block: none of it waits in the queue,
  // for a card that has one block at a time waits for each.
  cards.max_inflight_bytes = 2 * config_.limits.card_bytes;
  cards.header_digest = config_.digests;
  cards.data_digest = config_.digests;
  return card::make_nvme_card_set(std::move(reactors), std::move(cards));
}

void Engine::start() {
  Worker& acceptor = *workers_.front();
  listeners_.push_back(
      std::make_unique<Listener>(acceptor.reactor(), std::move(tcp_socket_),
                                 [this](UniqueFd socket) { accept(std::move(socket), false); }));
  listeners_.push_back(
      std::make_unique<Listener>(acceptor.reactor(), std::move(unix_socket_),
                                 [this](UniqueFd socket) { accept(std::move(socket), true); }));
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    threads_.emplace_back([worker = workers_[i].get()] { worker->reactor().run(); });
    ::pthread_setname_np(threads_.back().native_handle(), ("akv-worker-" + std::to_string(i)).c_str());
    if (!config_.cores.empty()) pin(threads_.back(), config_.cores[i]);
  }
}

// On worker 0's thread: the workers take the sessions in turn.
void Engine::accept(UniqueFd socket, bool local) {
  if (shared_.sessions.load(std::memory_order_relaxed) >= shared_.limits.max_sessions) {
    shared_.counters.front().add(Counter::sessions_refused);
    return;
  }
  Worker* const worker = workers_[next_worker_++ % workers_.size()].get();
  if (worker == workers_.front().get()) return worker->adopt(std::move(socket), local);
  auto moved = std::make_shared<UniqueFd>(std::move(socket));
  const bool posted =
      worker->reactor().post([worker, moved, local] { worker->adopt(std::move(*moved), local); });
  if (!posted) shared_.counters.front().add(Counter::sessions_refused);
}

// Runs `task` on each worker's thread and waits for all.
void Engine::run_everywhere(const std::function<void(Worker&)>& task, std::chrono::milliseconds patience) {
  const auto outstanding = std::make_shared<card::Outstanding>();
  for (const auto& worker : workers_) {
    outstanding->add();
    const bool posted = worker->reactor().post([task, outstanding, target = worker.get()] {
      task(*target);
      outstanding->done();
    });
    if (!posted) throw std::runtime_error("a worker's mailbox is full; the dataplane is overloaded");
  }
  if (!outstanding->wait_for_none(patience)) throw std::runtime_error("a worker did not answer in time");
}

bool Engine::apply_plan(Plan plan) {
  check_plan(plan);
  const std::lock_guard lock(plan_mutex_);
  if (settled_ && plan_ && same(*plan_, plan)) return false;
  const auto routing = std::make_shared<const Routing>(routing_of(plan));
  settled_ = false;
  plan_ = std::move(plan);
  cards_->apply(specs_of(*plan_));
  run_everywhere([routing](Worker& worker) { worker.set_routing(routing); }, kPlanPatience);
  settled_ = true;
  return true;
}

std::optional<Plan> Engine::plan() const {
  const std::lock_guard lock(plan_mutex_);
  return plan_;
}

std::vector<CardView> Engine::status() const {
  const auto served = plan();
  std::vector<CardView> views;
  if (!served) return views;
  const auto cards = cards_->status();
  for (const SlotPlan& entry : served->slots) {
    CardView view{.card = {}, .slot = entry.slot, .active = false};
    view.card.serial = entry.card.serial;
    view.card.state = card::CardState::stopped;
    for (const auto& snapshot : cards) {
      if (snapshot.serial == entry.card.serial) view.card = snapshot;
    }
    view.active = entry.routable && view.card.state == card::CardState::live;
    views.push_back(std::move(view));
  }
  return views;
}

std::vector<std::pair<std::string, std::uint64_t>> Engine::counters() const {
  return collect(shared_);
}

void Engine::wait_no_sessions(std::chrono::milliseconds patience) const {
  const auto end = Clock::now() + patience;
  while (shared_.sessions.load(std::memory_order_relaxed) != 0 && Clock::now() < end)
    std::this_thread::sleep_for(kWaitStep);
}

bool Engine::stop(std::chrono::milliseconds patience) {
  if (threads_.empty()) return true;
  bool clean = true;
  try {
    run_everywhere(
        [this](Worker& worker) {
          if (&worker == workers_.front().get()) listeners_.clear();
          worker.shut_down_sessions();
        },
        kTurnPatience);
    wait_no_sessions(patience);
    run_everywhere([](Worker& worker) { worker.close_sessions(); }, kTurnPatience);
    clean = cards_->stop(config_.io_timeout + kTurnPatience);
  } catch (const std::runtime_error& failure) {
    log_event(Level::error, "stop_incomplete", {{"reason", std::string_view(failure.what())}});
    clean = false;
  }
  join();
  ::unlink(config_.client_socket.c_str());
  return clean;
}

void Engine::join() {
  for (const auto& worker : workers_)
    worker->reactor().stop();
  for (std::thread& thread : threads_)
    thread.join();
  threads_.clear();
}

}  // namespace akv::gateway
