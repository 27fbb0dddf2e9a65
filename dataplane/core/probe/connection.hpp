// One queue pair whose commands are called one after another: what sets up a measurement.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "base/reactor.hpp"
#include "fabric/tcp_queue_pair.hpp"

namespace akv::probe {

// The target can't be measured; the text says why.
struct ProbeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Connection final : private fabric::QueuePairClient {
 public:
  // Throws ProbeError when the target does not answer within the configuration's time.
  Connection(Reactor& reactor, const fabric::TcpQueuePairConfig& config);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The successful response. Throws ProbeError that begins with `what` otherwise, also after ten seconds.
  fabric::Response call(const fabric::Command& command, const std::string& what);

  // For a load: its responses go to `client` from now on.
  [[nodiscard]] fabric::QueuePair& hand_to(fabric::QueuePairClient& client) noexcept;

 private:
  template <typename Done>
  void run_until(Done done, const std::string& what);
  void on_open() noexcept override { open_ = true; }
  void on_response(std::uint32_t tag, const fabric::Response& response) noexcept override;
  void on_closed(fabric::Ending how, const std::string& reason) noexcept override;

  Reactor& reactor_;
  fabric::QueuePairClient* client_{nullptr};
  bool open_{false};
  std::optional<std::string> closed_;
  std::optional<fabric::Response> response_;
  fabric::TcpQueuePair queue_pair_;
};

}  // namespace akv::probe
