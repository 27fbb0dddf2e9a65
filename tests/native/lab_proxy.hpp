// Stands between host and target, passes PDUs on and does one bad thing to one of them.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "base/unique_fd.hpp"
#include "fabric/address.hpp"
#include "nvme/pdu.hpp"

namespace akv::lab {

class Proxy {
 public:
  enum class Act : std::uint8_t { cut, flip };

  // The first PDU of `type` in that direction on connection number `connection` (0: the first made): both
  // ends are closed after `at` bytes of it went through, or its byte `at` is passed on inverted.
  struct Rule {
    unsigned connection{0};
    bool from_target{false};
    nvme::PduType type{nvme::PduType::ic_req};
    std::uint32_t at{0};
    Act act{Act::cut};
  };

  Proxy(std::string host, std::string port, const Rule& rule)
      : target_(host, port), rule_(rule), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    auto* const address = reinterpret_cast<sockaddr*>(&here);
    EXPECT_EQ(::bind(listener_.get(), address, size), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    EXPECT_EQ(::getsockname(listener_.get(), address, &size), 0);
    port_ = std::to_string(ntohs(here.sin_port));
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~Proxy() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      for (Pair& pair : pairs_)
        pair.hang_up();
    }
    for (std::thread& pump : pumps_)
      pump.join();
  }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  [[nodiscard]] const std::string& port() const noexcept { return port_; }
  [[nodiscard]] bool acted() const noexcept { return acted_; }

 private:
  struct Pair {
    UniqueFd host;
    UniqueFd target;
    unsigned number{0};

    void hang_up() const noexcept {
      ::shutdown(host.get(), SHUT_RDWR);
      ::shutdown(target.get(), SHUT_RDWR);
    }
  };

  void accept_all() {
    for (unsigned number = 0;; ++number) {
      UniqueFd host(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!host) return;
      UniqueFd target(::socket(target_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(target.get(), target_.get(), target_.size()) != 0) continue;
      const std::lock_guard lock(mutex_);
      Pair& pair = pairs_.emplace_back(Pair{std::move(host), std::move(target), number});
      pumps_.emplace_back([this, &pair] { pump(pair, false); });
      pumps_.emplace_back([this, &pair] { pump(pair, true); });
    }
  }

  void pump(const Pair& pair, bool from_target) {
    const int from = from_target ? pair.target.get() : pair.host.get();
    const int to = from_target ? pair.host.get() : pair.target.get();
    while (pass_pdu(pair, from_target, from, to)) {
    }
    pair.hang_up();
  }

  bool pass_pdu(const Pair& pair, bool from_target, int from, int to) {
    std::array<std::byte, 65536> bytes;
    const auto header = std::span(bytes).first(sizeof(nvme::CommonHeader));
    if (!read(from, header)) return false;
    const auto common = nvme::read_wire<nvme::CommonHeader>(header);
    const bool mine = pair.number == rule_.connection && from_target == rule_.from_target &&
                      common.type == static_cast<std::uint8_t>(rule_.type);
    std::uint32_t at = 0;
    std::size_t have = header.size();
    while (true) {
      auto piece = std::span(bytes).first(have);
      if (mine && !acted_ && rule_.at < at + have) {
        acted_ = true;
        if (rule_.act == Act::cut) {
          static_cast<void>(write(to, piece.first(rule_.at - at)));
          return false;
        }
        piece[rule_.at - at] = ~piece[rule_.at - at];
      }
      if (!write(to, piece)) return false;
      at += static_cast<std::uint32_t>(have);
      if (at >= common.plen) return true;
      have = std::min<std::size_t>(bytes.size(), common.plen - at);
      if (!read(from, std::span(bytes).first(have))) return false;
    }
  }

  static bool read(int from, std::span<std::byte> to) {
    while (!to.empty()) {
      const ssize_t got = ::recv(from, to.data(), to.size(), 0);
      if (got <= 0) return false;
      to = to.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }
  static bool write(int to, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }

  const fabric::TcpAddress target_;
  const Rule rule_;
  UniqueFd listener_;
  std::string port_;
  std::atomic<bool> acted_{false};
  std::mutex mutex_;
  std::list<Pair> pairs_;
  std::list<std::thread> pumps_;
  std::thread acceptor_;
};

}  // namespace akv::lab
