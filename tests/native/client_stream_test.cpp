// The client's stream: threads that share one socket, and what becomes of them when it breaks.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/bytes.hpp"
#include "client/stream.hpp"

namespace akv::client {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

Bytes frame(std::uint64_t id, std::size_t body_bytes) {
  Bytes bytes(kHeaderBytes + body_bytes, static_cast<std::byte>(id));
  encode_header({.opcode = 5, .status = 0, .count = 1, .request_id = id, .dialog_id = 0}, body_bytes, bytes);
  return bytes;
}

TimePoint in(std::chrono::milliseconds span) {
  return Clock::now() + span;
}

// A stream, and the gateway's end of its socket.
class ClientStream : public testing::Test {
 protected:
  ClientStream() {
    std::array<int, 2> pair{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    gateway.reset(pair[0]);
    UniqueFd socket(pair[1]);
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()), 0);
    attention.reset(pair[0]);
    stream =
        std::make_shared<Stream>(std::move(socket), UniqueFd(pair[1]), Stream::Limits{1U << 22U, 64, 4096});
  }

  [[nodiscard]] bool called() const {
    std::array<char, 64> bytes{};
    return ::recv(attention.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0;
  }
  void answer(const Bytes& bytes) const {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t got = ::send(gateway.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (got <= 0) return;
      sent += static_cast<std::size_t>(got);
    }
  }
  [[nodiscard]] bool asked() const {
    char byte = 0;
    return ::recv(gateway.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  }
  // The whole request that comes next; nothing at the end of the stream.
  [[nodiscard]] Bytes request() const {
    Bytes bytes(kHeaderBytes);
    if (!exactly(bytes)) return {};
    Bytes body(load_le<std::uint32_t>(bytes.data() + 4));
    if (!exactly(body)) return {};
    bytes.insert(bytes.end(), body.begin(), body.end());
    return bytes;
  }
  [[nodiscard]] bool exactly(std::span<std::byte> into) const {
    while (!into.empty()) {
      const ssize_t got = ::recv(gateway.get(), into.data(), into.size(), 0);
      if (got <= 0) return false;
      into = into.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }
  std::shared_ptr<Exchange> ask(std::uint64_t id, std::size_t body = 8) {
    return stream->begin(id, 1, frame(id, body), false);
  }

  UniqueFd gateway;
  UniqueFd attention;
  std::shared_ptr<Stream> stream;
};

// Requests and replies from nothing to more than the sockets hold, answered in any order.
TEST_F(ClientStream, ManyThreadsGetTheirOwnReplies) {
  constexpr unsigned kThreads = 4;
  constexpr unsigned kRounds = 100;
  std::jthread server([this] {
    std::mt19937 random(1);
    std::vector<Bytes> held;
    for (unsigned left = kThreads * kRounds; left > 0 || !held.empty();) {
      if (left > 0 && (held.empty() || (held.size() < 1 + random() % kThreads && asked()))) {
        held.push_back(request());
        --left;
        continue;
      }
      std::swap(held.back(), held[random() % held.size()]);
      answer(held.back());
      held.pop_back();
    }
  });
  std::vector<std::jthread> threads;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      std::mt19937 random(thread);
      for (unsigned round = 0; round < kRounds; ++round) {
        const std::size_t body = random() % 10 == 0 ? random() % (1U << 21U) : random() % 5000;
        const auto exchange = ask(stream->next_request_id(), body);
        ASSERT_EQ(stream->wait(exchange, in(30s)), Waited::replied);
        ASSERT_EQ(exchange->reply->body, Bytes(body, static_cast<std::byte>(exchange->request_id)));
      }
    });
  }
}

TEST_F(ClientStream, ADeadlinePassesAndTheReplyComesElsewhere) {
  const auto late = ask(1);
  EXPECT_EQ(stream->wait(late, in(1ms)), Waited::timed_out);
  stream->disown(late);
  EXPECT_FALSE(called());
  answer(frame(1, 3));
  const auto next = ask(2);
  answer(frame(2, 5));
  EXPECT_EQ(stream->wait(next, in(30s)), Waited::replied);
  EXPECT_TRUE(called()) << "somebody has to take the other reply";
  const auto foreign = stream->take_foreign();
  ASSERT_EQ(foreign.size(), 1U);
  EXPECT_EQ(foreign[0].header.request_id, 1U);
  EXPECT_EQ(foreign[0].body.size(), 3U);
}

TEST_F(ClientStream, AReplyThatCameIsDisownedWithItsCredit) {
  const auto exchange = ask(1);
  answer(frame(1, 3));
  ASSERT_EQ(stream->wait(exchange, in(30s)), Waited::replied);
  for (int i = 0; i < 63; ++i)
    stream->take_credit(1);
  EXPECT_TRUE(stream->has_room(1));
  stream->disown(exchange);
  EXPECT_FALSE(stream->has_room(1));
  ASSERT_EQ(stream->take_foreign().size(), 1U);
  stream->give_back(1);
  EXPECT_TRUE(stream->has_room(1));
}

TEST_F(ClientStream, AFrameCanWaitForTheNextOne) {
  const auto first = stream->begin(1, 1, frame(1, 8), false, Stream::Send::with_next);
  EXPECT_FALSE(asked());
  EXPECT_TRUE(stream->has_output());
  const auto second = ask(2);
  Bytes both(2 * (kHeaderBytes + 8));
  EXPECT_EQ(::recv(gateway.get(), both.data(), both.size(), MSG_DONTWAIT), static_cast<ssize_t>(both.size()));
  EXPECT_EQ(load_le<std::uint64_t>(both.data() + 16), 1U);
  answer(frame(1, 8));
  answer(frame(2, 8));
  EXPECT_EQ(stream->wait(second, in(30s)), Waited::replied);
  EXPECT_EQ(stream->wait(first, in(30s)), Waited::replied);
}

TEST_F(ClientStream, WhoWaitsForAFrameThatNothingFollowsSendsIt) {
  const auto only = stream->begin(1, 1, frame(1, 8), false, Stream::Send::with_next);
  std::thread waiter([&] { EXPECT_EQ(stream->wait(only, in(30s)), Waited::replied); });
  EXPECT_EQ(request().size(), kHeaderBytes + 8);
  answer(frame(1, 8));
  waiter.join();
}

TEST_F(ClientStream, ManyFramesLeaveInTheirOrderWhereverTheSocketFills) {
  constexpr std::uint64_t kFrames = 40;
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (std::uint64_t id = 1; id <= kFrames; ++id)
    exchanges.push_back(stream->begin(id, 1, frame(id, 30'000), false, Stream::Send::with_next));
  std::thread waiter([&] { EXPECT_EQ(stream->wait(exchanges.back(), in(30s)), Waited::replied); });
  for (std::uint64_t id = 1; id <= kFrames; ++id) {
    EXPECT_EQ(request(), frame(id, 30'000));
    answer(frame(id, 8));
  }
  waiter.join();
}

TEST_F(ClientStream, EntriesAreCountedToo) {
  EXPECT_TRUE(stream->has_room(5000)) << "one request alone may be larger";
  const auto exchange = stream->begin(1, 4000, frame(1, 0), true);
  EXPECT_FALSE(stream->has_room(97));
  EXPECT_TRUE(stream->has_room(96));
  answer(frame(1, 0));
  while (stream->pending() != 0)
    stream->process();
  EXPECT_TRUE(stream->has_room(4096));
  EXPECT_EQ(stream->take_told(), std::vector<std::uint64_t>{1});
  EXPECT_TRUE(called());
}

TEST_F(ClientStream, TheEndOfTheStreamEndsEveryWait) {
  std::vector<std::jthread> threads;
  for (std::uint64_t id = 1; id <= 3; ++id) {
    threads.emplace_back([this, id] { EXPECT_EQ(stream->wait(ask(id), in(30s)), Waited::lost); });
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_FALSE(request().empty());
  gateway.reset();
  threads.clear();
  EXPECT_FALSE(stream->why()->protocol);
  EXPECT_TRUE(called());
  EXPECT_EQ(ask(9), nullptr);
}

TEST_F(ClientStream, ClosingEndsEveryWait) {
  const auto exchange = ask(1);
  std::jthread waiter([&] { EXPECT_EQ(stream->wait(exchange, in(30s)), Waited::lost); });
  while (!stream->attended())
    std::this_thread::yield();
  stream->close();
  waiter.join();
  EXPECT_FALSE(request().empty());
  EXPECT_TRUE(request().empty()) << "the connection is closed";
}

TEST_F(ClientStream, ABodyAboveTheLimitEndsTheStream) {
  Bytes wrong = frame(1, 8);
  store_le(wrong.data() + 4, std::uint32_t{(1U << 22U) + 1});
  const auto exchange = ask(1);
  answer(wrong);
  EXPECT_EQ(stream->wait(exchange, in(30s)), Waited::lost);
  EXPECT_TRUE(stream->why()->protocol);
}

TEST_F(ClientStream, BytesThatAreNoFrameEndTheStream) {
  Bytes wrong = frame(1, 8);
  wrong[0] ^= std::byte{1};
  const auto exchange = ask(1);
  answer(wrong);
  EXPECT_EQ(stream->wait(exchange, in(30s)), Waited::lost);
  EXPECT_TRUE(stream->why()->protocol);
}

// Frames that arrive byte by byte, and many in one piece.
TEST_F(ClientStream, FramesAreCutWhereverTheyBreak) {
  Bytes all;
  for (std::uint64_t id = 1; id <= 40; ++id) {
    const Bytes one = frame(id, id * 37 % 200);
    all.insert(all.end(), one.begin(), one.end());
  }
  for (const std::size_t step : {std::size_t{1}, std::size_t{33}, all.size()}) {
    for (std::size_t at = 0; at < all.size(); at += step) {
      const std::size_t end = std::min(all.size(), at + step);
      answer({all.begin() + static_cast<long>(at), all.begin() + static_cast<long>(end)});
      stream->process();
    }
    const auto frames = stream->take_foreign();
    ASSERT_EQ(frames.size(), 40U);
    for (std::uint64_t id = 1; id <= 40; ++id)
      EXPECT_EQ(frames[id - 1].body, Bytes(id * 37 % 200, static_cast<std::byte>(id)));
  }
}

}  // namespace
}  // namespace akv::client
