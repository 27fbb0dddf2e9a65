// A scripted NVMe/TCP target for tests: blocking sockets, every PDU written by the test itself.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.hpp"
#include "base/crc32c.hpp"
#include "base/unique_fd.hpp"
#include "fabric/address.hpp"
#include "nvme/pdu.hpp"

namespace akv::fabric::test {

// A loopback address that no other test is likely to use.
inline std::string random_loopback() {
  std::random_device entropy;
  const auto octet = [&] { return std::to_string(1 + entropy() % 250); };
  return "127." + octet() + "." + octet() + "." + octet();
}

// One PDU as the target received it.
struct Received {
  nvme::PduHeader header;
  std::array<std::byte, nvme::kIcPduBytes> head{};
  std::vector<std::byte> data;

  template <nvme::WireStruct T>
  [[nodiscard]] T as() const {
    return nvme::read_wire<T>(head);
  }
};

// The target's end of one connection. Reads fail (ok() turns false) after ten seconds of silence or at the
// end.
class Peer {
 public:
  explicit Peer(UniqueFd socket) : socket_(std::move(socket)) {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const timeval patience{10, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }

  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] const nvme::Framing& framing() const noexcept { return rules_.framing; }
  void shutdown() noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }
  void shutdown_sending() noexcept { ::shutdown(socket_.get(), SHUT_WR); }
  // Reads whatever comes and forgets it.
  void skip() {
    std::array<std::byte, 4096> sink;
    if (::recv(socket_.get(), sink.data(), sink.size(), 0) <= 0) ok_ = false;
  }

  // The queue id that the host connected, for targets that keep track of it.
  [[nodiscard]] std::uint16_t queue() const noexcept { return queue_; }
  void set_queue(std::uint16_t queue) noexcept { queue_ = queue; }

  void send_bytes(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        ok_ = false;
        return;
      }
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
  }

  bool read_bytes(std::span<std::byte> to) {
    while (!to.empty() && ok_) {
      const ssize_t got = ::recv(socket_.get(), to.data(), to.size(), 0);
      if (got <= 0) ok_ = false;
      if (got > 0) to = to.subspan(static_cast<std::size_t>(got));
    }
    return ok_;
  }

  // The next PDU, with its digests checked.
  Received receive() {
    Received pdu;
    std::array<std::byte, 256> prefix{};
    std::size_t have = 0;
    nvme::ParseResult parsed;
    while ((parsed = nvme::parse_pdu(std::span(prefix).first(have), rules_)).kind ==
           nvme::ParseResult::Kind::need_more) {
      if (!read_bytes(std::span(prefix).subspan(have, parsed.need - have))) return pdu;
      have = parsed.need;
    }
    EXPECT_EQ(parsed.kind, nvme::ParseResult::Kind::header) << "the initiator sent a bad PDU";
    pdu.header = parsed.header;
    std::memcpy(pdu.head.data(), prefix.data(), pdu.header.hlen);
    pdu.data.resize(pdu.header.data);
    read_bytes(pdu.data);
    if (pdu.header.has_ddgst) {
      std::array<std::byte, nvme::kDigestBytes> digest{};
      if (read_bytes(digest)) {
        EXPECT_EQ(load_le<std::uint32_t>(digest.data()), crc32c(pdu.data));
      }
    }
    return pdu;
  }

  // A PDU as bytes under the connection's framing.
  template <nvme::WireStruct T>
  [[nodiscard]] std::vector<std::byte> encode(T pdu, std::span<const std::byte> data = {}) const {
    std::vector<std::byte> bytes(256);
    bytes.resize(
        nvme::encode_pdu(std::span(bytes), pdu, static_cast<std::uint32_t>(data.size()), send_framing_));
    bytes.insert(bytes.end(), data.begin(), data.end());
    if (send_framing_.ddgst && !data.empty()) {
      const std::uint32_t digest = crc32c(data);
      const auto* raw = reinterpret_cast<const std::byte*>(&digest);
      bytes.insert(bytes.end(), raw, raw + sizeof digest);
    }
    return bytes;
  }
  template <nvme::WireStruct T>
  void send(T pdu, std::span<const std::byte> data = {}) {
    send_bytes(encode(pdu, data));
  }

  // Answers the ICReq and keeps to what was agreed from then on.
  nvme::IcReq greet(nvme::IcResp response = {.maxh2cdata = 1U << 20U}, bool agree_to_digests = true) {
    const auto request = receive().as<nvme::IcReq>();
    if (agree_to_digests) response.dgst = request.dgst;
    send_bytes(nvme::wire_bytes(response));
    rules_.framing = {(response.dgst & nvme::kDigestHeader) != 0, (response.dgst & nvme::kDigestData) != 0,
                      response.cpda};
    rules_.max_capsule_data = rules_.max_data = 8U << 20U;
    send_framing_ = {rules_.framing.hdgst, rules_.framing.ddgst, request.hpda};
    return request;
  }

  void respond(std::uint16_t cid, nvme::Status status = nvme::kSuccess, std::uint64_t result = 0) {
    nvme::CapsuleResp response;
    response.cqe.cid = cid;
    response.cqe.set_status(status);
    response.cqe.set_result64(result);
    send(response);
  }
  void send_data(std::uint16_t cid, std::uint32_t offset, std::span<const std::byte> data,
                 std::uint8_t flags) {
    nvme::DataPdu pdu;
    pdu.common.type = static_cast<std::uint8_t>(nvme::PduType::c2h_data);
    pdu.common.flags = flags;
    pdu.cccid = cid;
    pdu.datao = offset;
    pdu.datal = static_cast<std::uint32_t>(data.size());
    send(pdu, data);
  }
  void send_r2t(std::uint16_t cid, std::uint16_t ttag, std::uint32_t offset, std::uint32_t bytes) {
    nvme::R2t r2t;
    r2t.cccid = cid;
    r2t.ttag = ttag;
    r2t.r2to = offset;
    r2t.r2tl = bytes;
    send(r2t);
  }

 private:
  UniqueFd socket_;
  bool ok_{true};
  std::uint16_t queue_{0};
  nvme::ReceiveRules rules_{.role = nvme::Role::controller};
  nvme::Framing send_framing_;
};

// Listens on a free port of a random loopback address; `serve` runs on a thread of its own for each
// connection.
class ScriptedTarget {
 public:
  // `receive_buffer` bounds what the kernel takes for a target that does not read; 0 leaves it to the kernel.
  explicit ScriptedTarget(std::function<void(Peer&)> serve, int receive_buffer = 0)
      : serve_(std::move(serve)) {
    host_ = random_loopback();
    const TcpAddress any(host_, "1");
    sockaddr_in address{};
    std::memcpy(&address, any.get(), sizeof address);
    address.sin_port = 0;
    listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    if (receive_buffer > 0) {
      ::setsockopt(listener_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    EXPECT_EQ(::listen(listener_.get(), 64), 0);
    socklen_t size = sizeof address;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = std::to_string(ntohs(address.sin_port));
    if (serve_) acceptor_ = std::thread([this] { accept_all(); });
  }
  ~ScriptedTarget() { stop(); }
  ScriptedTarget(const ScriptedTarget&) = delete;
  ScriptedTarget& operator=(const ScriptedTarget&) = delete;

  void stop() {
    if (stopping_.exchange(true)) return;
    ::shutdown(listener_.get(), SHUT_RDWR);
    if (acceptor_.joinable()) acceptor_.join();
    for (auto& connection : connections_)
      connection.join();
  }

  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  [[nodiscard]] const std::string& port() const noexcept { return port_; }
  [[nodiscard]] TcpAddress address() const { return {host_, port_}; }

 private:
  void accept_all() {
    while (!stopping_) {
      UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket) return;
      connections_.emplace_back([this, peer = std::make_shared<Peer>(std::move(socket))] { serve_(*peer); });
    }
  }

  std::function<void(Peer&)> serve_;
  std::string host_;
  std::string port_;
  UniqueFd listener_;
  std::atomic<bool> stopping_{false};
  std::thread acceptor_;
  std::vector<std::thread> connections_;
};

}  // namespace akv::fabric::test
