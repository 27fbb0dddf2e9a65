// The fuzzer's end of a TCP connection on loopback, never blocking.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/unique_fd.hpp"
#include "input.hpp"

namespace akv::fuzz {

class Wire {
 public:
  explicit Wire(UniqueFd socket = UniqueFd()) : socket_(std::move(socket)) {
    if (!socket_) return;
    // Closed by a reset: thousands of connections a second must not wait in TIME_WAIT.
    const linger none{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
  }

  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(socket_); }
  // What does not fit is lost.
  void send(std::span<const std::byte> bytes) noexcept {
    if (!bytes.empty()) ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  // Takes what has come; false at the end of the stream.
  template <typename Take>
  bool receive(Take take) noexcept {
    std::array<std::byte, 65'536> part;
    while (true) {
      const ssize_t got = ::recv(socket_.get(), part.data(), part.size(), MSG_DONTWAIT);
      if (got == 0) return false;
      if (got < 0) return errno == EAGAIN;
      take(std::span<const std::byte>(part).first(static_cast<std::size_t>(got)));
    }
  }
  void close() noexcept { socket_.reset(); }

 private:
  UniqueFd socket_;
};

// Listens on a free port of 127.0.0.1.
class LoopbackListener {
 public:
  LoopbackListener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    check(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0, "bind");
    check(::listen(socket_.get(), 16) == 0, "listen");
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] Wire accept() const {
    int accepted = -1;
    do {
      accepted = ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    } while (accepted < 0 && errno == EINTR);
    return Wire(UniqueFd(accepted));
  }

 private:
  UniqueFd socket_;
  std::uint16_t port_{0};
};

// The fuzzer's own timer may interrupt a connect, and thousands of connections a second use up the ports
// until the kernel gives them back: neither is a fault of what is fuzzed.
inline Wire connect_to(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  for (int attempt = 0;; ++attempt) {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
      return Wire(std::move(socket));
    const int error = errno;
    check((error == EINTR || error == EADDRNOTAVAIL) && attempt < 500, "connect");
    ::usleep(10'000);
  }
}

}  // namespace akv::fuzz
