#include "softcard/target.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/card_socket.hpp"
#include "base/events.hpp"

namespace akv::softcard {
namespace {

constexpr auto kSweepInterval = std::chrono::milliseconds(100);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr int kAcceptsPerEvent = 32;
constexpr std::uint16_t kMaxCntlid = 0xFFEF;  // NVMe Base 2.0, 3.1.2
constexpr std::uint32_t kPageBytes = 4096;

std::uint8_t mdts_for(std::uint32_t value_bytes) {
  const auto pages = std::max<std::uint32_t>((value_bytes + kPageBytes - 1) / kPageBytes, 1);
  return static_cast<std::uint8_t>(std::bit_width(pages - 1));
}

}  // namespace

Target::Target(Reactor& reactor, const CardConfig& config, StoreAccess& access, Faults& faults)
    : reactor_(reactor),
      config_(config),
      access_(access),
      faults_(faults),
      mdts_(mdts_for(access.store().max_value_bytes())),
      serve_budget_(reactor, [this] { budget_.serve(); }),
      budget_(config.receive_bytes, [this] { serve_budget_.request(); }) {
  sweep_ = reactor_.call_after(kSweepInterval, [this] { check_deadlines(); });
}

Target::~Target() {
  shut_down();
  reactor_.cancel(sweep_);
  connections_.clear();
}

void Target::listen(const TcpEndpoint& endpoint) {
  listener_ = listen_tcp(endpoint);
  endpoint_ = local_endpoint(listener_.get());
  reactor_.add(listener_.get(), EPOLLIN, *this);
}

void Target::shut_down() noexcept {
  reactor_.cancel(accept_again_);
  if (listener_) reactor_.remove(listener_.get());
  listener_.reset();
  for (const auto& [id, connection] : connections_)
    connection->close("the card stops");
}

void Target::on_events(std::uint32_t) noexcept {
  for (int accepted = 0; accepted < kAcceptsPerEvent; ++accepted) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      accept_one(std::move(socket));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      return pause_accepting();
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;
    }
  }
}

// Above the bound a connection ends at once: waiting in the backlog would look like a card that hangs.
void Target::accept_one(UniqueFd socket) {
  if (connections_.size() >= config_.max_connections) {
    ++counters_.refused;
    return;
  }
  ++counters_.accepted;
  set_card_socket_options(socket.get());
  try {
    const auto id = ++last_connection_;
    connections_.emplace(id, std::make_unique<Connection>(*this, std::move(socket), id));
  } catch (
      const std::exception& error) {  // no memory, or no room in epoll: this connection ends, others stay
    ++counters_.refused;
    log_event(Level::error, "connection_refused", {{"error", error.what()}});
  }
}

// The descriptor limit is reached: the backlog keeps for a moment what can't be accepted.
void Target::pause_accepting() {
  reactor_.modify(listener_.get(), 0);
  accept_again_ = reactor_.call_after(kAcceptPause, [this] { reactor_.modify(listener_.get(), EPOLLIN); });
}

void Target::check_deadlines() {
  const auto now = reactor_.now();
  for (const auto& [id, connection] : connections_)
    connection->check_deadlines(now);
  std::vector<Connection*> expired;
  for (const auto& [cntlid, controller] : controllers_) {
    if (controller->keep_alive_expired(now)) expired.push_back(controller->admin());
  }
  for (auto* const admin : expired)
    admin->close("keep alive timer expired");
  sweep_ = reactor_.call_after(kSweepInterval, [this] { check_deadlines(); });
}

Controller* Target::create_controller(const nvme::ConnectData& host, Connection& admin) {
  if (controllers_.size() >= kMaxCntlid) return nullptr;
  do {
    last_cntlid_ = static_cast<std::uint16_t>(last_cntlid_ % kMaxCntlid + 1U);
  } while (controllers_.contains(last_cntlid_));
  auto& controller = controllers_[last_cntlid_];
  controller = std::make_unique<Controller>(last_cntlid_, config_, host, &admin);
  log_event(Level::info, "controller_created",
            {{"cntlid", last_cntlid_}, {"hostnqn", controller->hostnqn()}});
  return controller.get();
}

Connection* Target::find_connection(std::uint64_t id) const {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

Controller* Target::find_controller(std::uint16_t cntlid) const {
  const auto found = controllers_.find(cntlid);
  return found == controllers_.end() ? nullptr : found->second.get();
}

void Target::end_io_queues(Controller& controller, std::string_view why) noexcept {
  for (const auto& [qid, connection] : controller.take_queues())
    connection->close(why);
}

void Target::connection_closed(Connection& connection, Controller* controller,
                               std::string_view why) noexcept {
  // The object is still in use up the call stack.
  reactor_.defer([this, id = connection.id()] { connections_.erase(id); });
  if (controller == nullptr) return;
  if (connection.qid() != 0) return controller->remove_queue(connection.qid());
  end_io_queues(*controller, why);
  log_event(Level::info, "controller_removed",
            {{"cntlid", controller->cntlid()}, {"hostnqn", controller->hostnqn()}, {"reason", why}});
  controllers_.erase(controller->cntlid());
}

void Target::count_fatal_error(const Connection& connection, const nvme::FatalError& error) {
  ++counters_.fatal_errors;
  // Garbage may come without end: 1, 2, 4, 8 ... are told.
  if (!std::has_single_bit(counters_.fatal_errors)) return;
  log_event(Level::warning, "connection_terminated",
            {{"error", nvme::to_string(error.status)},
             {"info", error.info},
             {"cntlid", connection.controller() == nullptr ? 0U : connection.controller()->cntlid()},
             {"qid", connection.qid()},
             {"fatal_errors", counters_.fatal_errors}});
}

nlohmann::ordered_json Target::stats() const {
  const auto store = access_.store().stats();
  return {{"keys", store.keys},
          {"bytes", store.bytes},
          {"capacity", store.capacity},
          {"evictions", store.evictions},
          {"moves", store.moves},
          {"corrupt", store.corrupt},
          {"index_bytes", store.index_bytes},
          {"max_keys", store.max_keys},
          {"max_value_bytes", access_.store().max_value_bytes()},
          {"store_waiting", access_.waiting()},
          {"commands",
           {{"store", counters_.store},
            {"retrieve", counters_.retrieve},
            {"exist", counters_.exist},
            {"delete", counters_.remove},
            {"list", counters_.list},
            {"admin", counters_.admin}}},
          {"retrieve_misses", counters_.retrieve_misses},
          {"bytes_in", counters_.bytes_in},
          {"bytes_out", counters_.bytes_out},
          {"connections", connections()},
          {"controllers", controllers()},
          {"accepted", counters_.accepted},
          {"refused", counters_.refused},
          {"fatal_errors", counters_.fatal_errors},
          {"faults", counters_.faults},
          {"receive_bytes", budget_.used()}};
}

}  // namespace akv::softcard
