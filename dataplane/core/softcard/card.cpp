#include "softcard/card.hpp"

#include <malloc.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "base/events.hpp"
#include "base/reactor.hpp"
#include "softcard/control.hpp"
#include "softcard/faults.hpp"
#include "softcard/file_store.hpp"
#include "softcard/memory_store.hpp"
#include "softcard/options.hpp"
#include "softcard/state_dir.hpp"
#include "softcard/store_access.hpp"
#include "softcard/target.hpp"

namespace akv::softcard {
namespace {

// Descriptors apart from connections: listener, control, file, epoll, logs.
constexpr rlim_t kSpareDescriptors = 64;

// Values are large and of few sizes: without this, each store maps and unmaps its memory, and the page faults
// cost as much as the copy.
void keep_freed_memory() {
  constexpr int never_map = 1 << 30;
  constexpr int keep = 1 << 28;
  ::mallopt(M_MMAP_THRESHOLD, never_map);
  ::mallopt(M_TRIM_THRESHOLD, keep);
}

void raise_descriptor_limit(std::uint32_t connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = connections + kSpareDescriptors;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  // Without it the card takes fewer connections; accept() then waits for free descriptors.
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
    log_event(Level::warning, "descriptor_limit_low", {{"limit", limit.rlim_cur}, {"wanted", wanted}});
  }
}

// SIGTERM and SIGINT as events of the reactor.
class StopSignals final : private FdHandler {
 public:
  explicit StopSignals(Reactor& reactor) : reactor_(reactor) {
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGTERM);
    ::sigaddset(&signals, SIGINT);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    fd_.reset(::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!fd_) throw std::system_error(errno, std::generic_category(), "signalfd");
    reactor_.add(fd_.get(), EPOLLIN, *this);
  }
  ~StopSignals() { reactor_.remove(fd_.get()); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  void on_events(std::uint32_t) noexcept override { reactor_.stop(); }

  Reactor& reactor_;
  UniqueFd fd_;
};

// The store and the way to it.
struct Storage {
  std::unique_ptr<Store> store;
  std::unique_ptr<StoreAccess> access;
};

Storage open_storage(Reactor& reactor, const CardConfig& card, Faults& faults) {
  if (!card.file) {
    auto store = std::make_unique<MemoryStore>(card.capacity, card.max_value_bytes);
    auto access = std::make_unique<DirectAccess>(*store);
    return {std::move(store), std::move(access)};
  }
  auto store = std::make_unique<FileStore>(CardFileSpec{.path = *card.file,
                                                        .serial = card.serial,
                                                        .capacity = card.capacity,
                                                        .max_value_bytes = card.max_value_bytes,
                                                        .max_keys = card.max_keys,
                                                        .direct = card.direct,
                                                        .faults = &faults});
  auto access = std::make_unique<ThreadedAccess>(reactor, *store, card.file_readers);
  return {std::move(store), std::move(access)};
}

// Without an endpoint it is one of a card that starts.
CardRecord record_of(const CardConfig& card, std::vector<TcpEndpoint> endpoints) {
  return {.id = card.id,
          .serial = card.serial,
          .nqn = card.nqn,
          .uuid = uuid_text(card.uuid),
          .addresses = std::move(endpoints),
          .running = true};
}

nlohmann::ordered_json to_json(const Fault& fault) {
  nlohmann::ordered_json json{{"fault", fault.id}, {"op", fault.ops}, {"kind", to_string(fault.kind)}};
  json.update({{"after", fault.after}, {"count", fault.count}, {"hits", fault.hits}});
  if (fault.kind == FaultKind::delay) json["ms"] = fault.delay.count();
  return json;
}

// "list", "clear", or a fault to switch on.
nlohmann::ordered_json switch_faults(Faults& faults, const std::string& words) {
  if (words == "clear") return {{"cleared", faults.clear()}};
  if (words != "list") faults.add(parse_fault(words));
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const auto& fault : faults.all())
    all.push_back(to_json(fault));
  return {{"faults", all}};
}

nlohmann::ordered_json card_stats(const CardConfig& card, const Target& target) {
  nlohmann::ordered_json stats{{"id", card.id}, {"serial", card.serial}, {"state", "running"}};
  stats.update(target.stats());
  return stats;
}

}  // namespace

void serve_card(const ServeOptions& options) {
  const auto& card = options.card;
  keep_freed_memory();
  raise_descriptor_limit(card.max_connections);
  const CardSeat seat(options.state_dir, record_of(card, {}));
  Reactor reactor;
  if (card.short_wakeups) reactor.shorten_wakeups();
  const StopSignals signals(reactor);
  Faults faults;
  auto storage = open_storage(reactor, card, faults);
  Target target(reactor, card, *storage.access, faults);
  target.listen(options.listen);
  const ControlServer control(
      reactor, seat.listen_control(),
      {.stats = [&] { return card_stats(card, target); },
       .stop = [&] { reactor.stop(); },
       .fault = [&](const std::string& words) { return switch_faults(faults, words); }});
  seat.publish(record_of(card, {target.endpoint()}));
  log_event(Level::info, "ready",
            {{"id", card.id},
             {"serial", card.serial},
             {"traddr", target.endpoint().address},
             {"trsvcid", std::to_string(target.endpoint().port)},
             {"address", target.endpoint().text()},
             {"port", target.endpoint().port},
             {"keys", storage.store->stats().keys}});
  reactor.run();
  target.shut_down();
  faults.clear();
  faults.release();
  storage.access.reset();  // once the writes under way are done
  storage.store->flush();
  log_event(Level::info, "stopped", {{"id", card.id}, {"serial", card.serial}});
}

}  // namespace akv::softcard
