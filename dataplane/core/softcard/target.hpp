// The NVM subsystem: listener, connections, controllers and the store behind them, all on one reactor's
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/reactor.hpp"
#include "base/unique_fd.hpp"
#include "nvme/pdu.hpp"
#include "softcard/address.hpp"
#include "softcard/config.hpp"
#include "softcard/connection.hpp"
#include "softcard/controller.hpp"
#include "softcard/faults.hpp"
#include "softcard/receive_budget.hpp"
#include "softcard/store.hpp"
#include "softcard/store_access.hpp"

namespace akv::softcard {

struct Counters {
  std::uint64_t store{0};
  std::uint64_t retrieve{0};
  std::uint64_t retrieve_misses{0};
  std::uint64_t exist{0};
  std::uint64_t remove{0};
  std::uint64_t list{0};
  std::uint64_t admin{0};
  std::uint64_t bytes_in{0};   // of values stored
  std::uint64_t bytes_out{0};  // of values retrieved
  std::uint64_t accepted{0};   // connections
  std::uint64_t refused{0};    // connections above the bound
  std::uint64_t fatal_errors{0};
  std::uint64_t faults{0};  // commands that a fault struck
};

class Target final : private FdHandler {
 public:
  Target(Reactor& reactor, const CardConfig& config, StoreAccess& access, Faults& faults);
  ~Target();
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  // Throws std::system_error that names the address. Port 0 takes a free one.
  void listen(const TcpEndpoint& endpoint);
  [[nodiscard]] const TcpEndpoint& endpoint() const noexcept { return endpoint_; }
  // Takes no more connections and ends those there are.
  void shut_down() noexcept;

  [[nodiscard]] Reactor& reactor() const noexcept { return reactor_; }
  [[nodiscard]] const CardConfig& config() const noexcept { return config_; }
  [[nodiscard]] StoreAccess& access() const noexcept { return access_; }
  [[nodiscard]] Store& store() const noexcept { return access_.store(); }
  [[nodiscard]] Faults& faults() const noexcept { return faults_; }
  [[nodiscard]] ReceiveBudget& budget() noexcept { return budget_; }
  [[nodiscard]] Counters& counters() noexcept { return counters_; }
  // Log2 of the longest transfer in pages of 4,096 bytes, which takes the longest value.
  [[nodiscard]] std::uint8_t mdts() const noexcept { return mdts_; }
  [[nodiscard]] std::uint32_t max_transfer_bytes() const noexcept { return 4096U << mdts_; }

  // nullptr when no controller id is free.
  [[nodiscard]] Controller* create_controller(const nvme::ConnectData& host, Connection& admin);
  [[nodiscard]] Controller* find_controller(std::uint16_t cntlid) const;
  void end_io_queues(Controller& controller, std::string_view why) noexcept;

  // nullptr once it is closed.
  [[nodiscard]] Connection* find_connection(std::uint64_t id) const;
  // From Connection::close(): takes the connection, and with an admin queue its controller, off the books.
  void connection_closed(Connection& connection, Controller* controller, std::string_view why) noexcept;
  void count_fatal_error(const Connection& connection, const nvme::FatalError& error);

  [[nodiscard]] std::size_t connections() const noexcept { return connections_.size(); }
  [[nodiscard]] std::size_t controllers() const noexcept { return controllers_.size(); }
  [[nodiscard]] nlohmann::ordered_json stats() const;

 private:
  void on_events(std::uint32_t events) noexcept override;
  void accept_one(UniqueFd socket);
  void pause_accepting();
  void check_deadlines();

  Reactor& reactor_;
  const CardConfig& config_;
  StoreAccess& access_;
  Faults& faults_;
  std::uint8_t mdts_{0};
  Counters counters_;
  AfterEvent serve_budget_;
  ReceiveBudget budget_;
  UniqueFd listener_;
  TcpEndpoint endpoint_;
  std::map<std::uint16_t, std::unique_ptr<Controller>> controllers_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::uint64_t last_connection_{0};
  std::uint16_t last_cntlid_{0};
  TimerId sweep_{0};
  TimerId accept_again_{0};
};

}  // namespace akv::softcard
