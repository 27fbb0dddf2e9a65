// Listening sockets: TCP and Unix. Accepts on one reactor and hands the sockets on.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "base/reactor.hpp"
#include "base/unique_fd.hpp"

namespace akv::gateway {

// A socket can't be had; the text names address and remedy.
class ListenError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A bound and listening socket. Throws ListenError.
[[nodiscard]] UniqueFd listen_tcp(const std::string& address, std::uint16_t port);
// Readable and writable for the owner alone. A socket file that nobody answers on any more is replaced.
[[nodiscard]] UniqueFd listen_unix(const std::string& path);

class Listener final : private FdHandler {
 public:
  using Accepted = std::function<void(UniqueFd)>;

  Listener(Reactor& reactor, UniqueFd socket, Accepted accepted);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  void on_events(std::uint32_t events) noexcept override;
  void pause(int error);

  Reactor& reactor_;
  UniqueFd socket_;
  Accepted accepted_;
  TimerId resume_{0};
  bool told_paused_{false};  // one line for each time that descriptors ran out, not one for each attempt
};

}  // namespace akv::gateway
