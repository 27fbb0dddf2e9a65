// A queue pair under test with its reactor, driven by the test's own thread.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fabric/tcp_queue_pair.hpp"

namespace akv::fabric::test {

// Opcodes of the NVM command set.
inline constexpr std::uint8_t kWrite = 0x01;
inline constexpr std::uint8_t kRead = 0x02;

class Client final : public QueuePairClient {
 public:
  explicit Client(TcpQueuePairConfig config) : queue_pair(make_tcp_queue_pair(reactor, config, *this)) {}

  // Runs the loop until `done`; false after twenty seconds.
  template <typename Condition>
  [[nodiscard]] bool run_until(Condition done) {
    const Deadline deadline(monotonic_now(), std::chrono::seconds(20));
    while (!done() && !deadline.passed(monotonic_now()))
      reactor.run_once(std::chrono::milliseconds(50));
    return done();
  }
  [[nodiscard]] bool connect() {
    queue_pair->start();
    return run_until([this] { return open || closed; }) && open;
  }
  [[nodiscard]] bool wait_closed() {
    return run_until([this] { return closed.has_value(); });
  }
  // Submits one command and waits for its response or the end of the connection.
  std::optional<Response> call(const Command& command, std::uint32_t tag = 1) {
    if (!queue_pair->submit(command, tag)) return std::nullopt;
    queue_pair->flush();
    EXPECT_TRUE(run_until([&] { return responses.contains(tag) || closed; }));
    return responses.contains(tag) ? std::optional(responses.at(tag)) : std::nullopt;
  }

  Reactor reactor;
  std::shared_ptr<QueuePair> queue_pair;
  bool open{false};
  std::map<std::uint32_t, Response> responses;
  std::map<std::uint32_t, std::vector<std::uint32_t>>
      arrivals;  // by tag: bytes that were told to be in place
  std::optional<std::string> closed;
  std::optional<Ending> ending;

 private:
  void on_open() noexcept override { open = true; }
  void on_arrived(std::uint32_t tag, std::uint32_t bytes) noexcept override {
    EXPECT_FALSE(responses.contains(tag)) << "answered already";
    EXPECT_FALSE(closed);
    arrivals[tag].push_back(bytes);
  }
  void on_response(std::uint32_t tag, const Response& response) noexcept override {
    responses[tag] = response;
  }
  void on_closed(Ending how, const std::string& reason) noexcept override {
    EXPECT_FALSE(closed) << "closed twice";
    closed = reason;
    ending = how;
  }
};

// A destination with guard bytes around it, split over several vectors.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::size_t size, std::size_t pieces = 3)
      : bytes_(size + 2 * kGuard, std::byte{0xA5}) {
    std::size_t at = kGuard;
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      const std::size_t end = kGuard + size * (piece + 1) / pieces;
      vectors_.push_back({bytes_.data() + at, end - at});
      at = end;
    }
  }
  [[nodiscard]] std::span<const iovec> vectors() const { return vectors_; }
  [[nodiscard]] std::span<std::byte> bytes() {
    return std::span(bytes_).subspan(kGuard, bytes_.size() - 2 * kGuard);
  }
  [[nodiscard]] bool guards_intact() const {
    const auto intact = [](std::span<const std::byte> guard) {
      return std::ranges::all_of(guard, [](std::byte byte) { return byte == std::byte{0xA5}; });
    };
    return intact(std::span(bytes_).first(kGuard)) && intact(std::span(bytes_).last(kGuard));
  }

 private:
  static constexpr std::size_t kGuard = 4096;
  std::vector<std::byte> bytes_;
  std::vector<iovec> vectors_;
};

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << '"' << text << "\" does not contain \"" << part << '"';
}

inline std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (auto& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56U);
  }
  return bytes;
}

inline Command command(std::uint8_t opcode, Direction direction = Direction::none,
                       std::span<const iovec> data = {}) {
  Command made;
  made.sqe.opcode = opcode;
  made.direction = direction;
  made.data = data;
  return made;
}

}  // namespace akv::fabric::test
