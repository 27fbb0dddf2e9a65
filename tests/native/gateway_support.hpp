// What tests of the gateway share: frames, a worker driven by hand, a client on a socket pair.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/reactor.hpp"
#include "base/unique_fd.hpp"
#include "gateway/shared.hpp"
#include "gateway/wire.hpp"
#include "gateway/worker.hpp"
#include "gateway_scripted_cards.hpp"
#include "kv/keys.hpp"

namespace akv::gateway::test {

using namespace std::chrono_literals;

struct Reply {
  wire::Header header;
  Bytes body;

  [[nodiscard]] wire::FrameStatus status() const { return static_cast<wire::FrameStatus>(header.status); }
  [[nodiscard]] std::string text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
  template <std::unsigned_integral T>
  [[nodiscard]] T number(std::size_t offset) const {
    if (offset + sizeof(T) > body.size()) throw std::out_of_range("reply too short");
    return load_le<T>(body.data() + offset);
  }
  [[nodiscard]] wire::EntryStatus entry(std::size_t index, std::size_t stride) const {
    return static_cast<wire::EntryStatus>(number<std::uint32_t>(index * stride));
  }
};

template <std::unsigned_integral T>
void append(Bytes& to, T value) {
  const std::size_t at = to.size();
  to.resize(at + sizeof value);
  store_le(to.data() + at, value);
}

inline void append(Bytes& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

inline Bytes key_of(unsigned number) {
  Bytes key(32);
  store_le(key.data(), std::uint64_t{number} * 0x9E3779B97F4A7C15U);
  store_le(key.data() + 24, std::uint64_t{number});
  return key;
}

inline Bytes payload_of(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  std::uint32_t state = seed * 2654435761U + 1;
  for (auto& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24U);
  }
  return bytes;
}

inline Bytes frame(wire::Opcode opcode, const Bytes& body, std::uint32_t count, std::uint64_t id,
                   std::uint16_t status = 0) {
  Bytes bytes(wire::kHeaderBytes);
  wire::encode_header({.body_len = static_cast<std::uint32_t>(body.size()),
                       .opcode = static_cast<std::uint16_t>(opcode),
                       .status = status,
                       .count = count,
                       .request_id = id,
                       .dialog_id = 7},
                      std::span(bytes).first<wire::kHeaderBytes>());
  append(bytes, body);
  return bytes;
}

struct Entries {
  Entries& add(const Bytes& key, std::uint64_t offset, std::uint32_t length,
               std::uint16_t region = wire::kRegionArena, std::uint16_t flags = 0) {
    append(body, key);
    append(body, offset);
    append(body, length);
    append(body, region);
    append(body, flags);
    ++count;
    return *this;
  }
  Bytes body;
  std::uint32_t count{0};
};

inline Bytes hello_body(std::uint64_t arena_bytes, std::string_view name = "default",
                        std::uint32_t more_features = 0) {
  Bytes body;
  append(body, std::uint16_t{1});
  append(body, std::uint16_t{1});
  append(body, std::uint32_t{arena_bytes != 0} | more_features);
  append(body, arena_bytes);
  body.resize(body.size() + 64);
  append(body, static_cast<std::uint16_t>(name.size()));
  append(body, as_byte_span(name));
  return body;
}

// A worker whose reactor the test turns, with one scripted card and clients on socket pairs.
class Bench {
 public:
  explicit Bench(Limits limits = {}, Secrets secrets = {}, std::uint64_t memory = 1U << 20U,
                 std::uint64_t cache = 0, bool lends = false)
      : shared(limits, std::move(secrets), memory, 1, cache, lends),
        worker(0, shared),
        cards(worker.reactor(), 0) {
    worker.connect(cards, {&worker});
    route({"C0"});
  }

  void route(const std::vector<std::string>& serials, std::uint32_t num_dbs = 128,
             const std::string& nqn = "nqn.2026-01.test:a") {
    auto routing = std::make_shared<Routing>();
    routing->num_dbs = num_dbs;
    for (std::size_t i = 0; i < serials.size(); ++i)
      routing->routable[i] = RoutableCard{.serial = serials[i], .nqn = nqn, .uuid = {}};
    worker.set_routing(routing);
  }
  [[nodiscard]] std::uint64_t counter(Counter which) const { return shared.counters[0].get(which); }
  [[nodiscard]] std::uint64_t leased() const { return shared.leased->load(); }
  ScriptedQueue& queue() { return cards.queue_of_card; }

  // Turns the reactor until `done`, at most five seconds.
  bool turn_until(const std::function<bool()>& done) {
    const auto end = Clock::now() + 5s;
    while (!done()) {
      if (Clock::now() > end) return false;
      worker.reactor().run_once(1ms);
    }
    return true;
  }
  void turn(int times = 3) {
    for (int i = 0; i < times; ++i)
      worker.reactor().run_once(0ms);
  }

  SharedState shared;
  Worker worker;
  ScriptedCards cards;

 private:
  struct Crypto {
    Crypto() { kv::init_crypto(); }
  } crypto_;
};

// Sends one byte, and the descriptors with it. False: the socket did not take it.
inline bool send_descriptors(int socket, const std::vector<int>& descriptors,
                             std::span<const std::byte> bytes) {
  iovec vector{const_cast<std::byte*>(bytes.data()), 1};
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

class TestClient {
 public:
  // `room`: bytes of replies, about, that the socket takes while the client does not read.
  explicit TestClient(Bench& bench, bool local = true, int room = 0) : bench_(bench) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
      throw std::bad_alloc();
    socket_.reset(pair[0]);
    if (room != 0) ::setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    bench.worker.adopt(UniqueFd(pair[1]), local);
  }

  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) bytes = bytes.subspan(static_cast<std::size_t>(sent));
      if (sent < 0 && errno != EAGAIN) return;
      bench_.turn(1);
    }
  }
  // The first byte carries the descriptors.
  void send_with(const std::vector<int>& descriptors, std::span<const std::byte> bytes) {
    if (send_descriptors(socket_.get(), descriptors, bytes)) send(bytes.subspan(1));
  }
  // What has arrived, descriptors included; false at the end of the stream.
  bool receive() {
    std::byte buffer[65'536];
    iovec vector{buffer, sizeof buffer};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0) return errno == EAGAIN;
    if (cmsghdr* const header = CMSG_FIRSTHDR(&message); header != nullptr) {
      int fds[2]{-1, -1};
      std::memcpy(fds, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
      memory_fd.reset(fds[0]);
      cache_fd.reset(fds[1]);
      fd_offset = received.size();
    }
    received.insert(received.end(), buffer, buffer + got);
    return got != 0;
  }
  // The next frame, or nothing within five seconds.
  std::optional<Reply> reply() {
    std::optional<Reply> next;
    bench_.turn_until([&] {
      const bool open = receive();
      next = cut();
      return next.has_value() || !open;
    });
    return next;
  }
  std::optional<Reply> call(std::span<const std::byte> request) {
    send(request);
    return reply();
  }
  bool closed() {
    return bench_.turn_until([&] { return !receive(); });
  }
  void hang_up() { socket_.reset(); }
  [[nodiscard]] int fd() const { return socket_.get(); }

  std::optional<Reply> hello(std::uint64_t arena_bytes, std::string_view name = "default",
                             std::uint32_t more_features = 0) {
    return call(frame(wire::Opcode::hello, hello_body(arena_bytes, name, more_features), 0, 1));
  }

  Bytes received;
  UniqueFd memory_fd;
  UniqueFd cache_fd;
  std::size_t fd_offset{~std::size_t{0}};

 private:
  std::optional<Reply> cut() {
    if (received.size() < wire::kHeaderBytes) return std::nullopt;
    const auto header = wire::decode_header(std::span(received).first<wire::kHeaderBytes>());
    if (!header || received.size() < wire::kHeaderBytes + header->body_len) return std::nullopt;
    const auto start = received.begin() + static_cast<long>(wire::kHeaderBytes);
    Reply reply{.header = *header, .body = {start, start + header->body_len}};
    received.erase(received.begin(), start + header->body_len);
    return reply;
  }

  Bench& bench_;
  UniqueFd socket_;
};

}  // namespace akv::gateway::test
