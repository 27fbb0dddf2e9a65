// What one session may cost the others: output, turns of the worker, memory, time.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "gateway_support.hpp"

namespace akv::gateway::test {
namespace {

using wire::FrameStatus;
using wire::Opcode;

constexpr std::size_t kOneRead = std::size_t{64} << 10U;  // what the gateway takes in one read

// As many frames as one read takes.
Bytes one_read_of(const Bytes& request) {
  Bytes bytes;
  while (bytes.size() + request.size() <= kOneRead)
    append(bytes, request);
  return bytes;
}

Bytes inline_put(unsigned key, std::uint32_t length, std::uint64_t id) {
  auto entries = Entries().add(key_of(key), 0, length, wire::kRegionInline);
  append(entries.body, payload_of(length, key));
  return frame(Opcode::put, entries.body, 1, id);
}

// Sends as many as one read takes; the client reads nothing before the gateway has done what it does then.
std::size_t send_many(Bench& bench, TestClient& client, const Bytes& request) {
  const Bytes many = one_read_of(request);
  EXPECT_EQ(::send(client.fd(), many.data(), many.size(), MSG_NOSIGNAL), static_cast<long>(many.size()));
  bench.turn(100);
  return many.size() / request.size();
}

// What the socket took until now.
std::size_t taken_by_socket(TestClient& client) {
  std::size_t before = 0;
  do {
    before = client.received.size();
    client.receive();
  } while (client.received.size() != before);
  return before;
}

TEST(GatewayBounds, StatsAreAnsweredOnlyWhileTheClientTakesTheAnswers) {
  Bench bench;
  TestClient client(bench);
  ASSERT_TRUE(client.hello(0));
  const std::size_t count = send_many(bench, client, frame(Opcode::stats, {}, 0, 1));
  ASSERT_EQ(count, 2048U);
  const std::size_t taken = taken_by_socket(client);
  bench.shared.counters[0].add(Counter::puts);  // so replies tell when they were made
  std::size_t made = 0;
  std::size_t one = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto reply = client.reply();
    ASSERT_TRUE(reply) << i << " of " << count;
    one = wire::kHeaderBytes + reply->body.size();
    if (reply->text().find("\"puts\":0") != std::string::npos) made += one;
  }
  EXPECT_GT(made, bench.shared.limits.max_output);
  EXPECT_LE(made - taken, bench.shared.limits.max_output + one);
  EXPECT_EQ(client.call(frame(Opcode::stats, {}, 0, 2))->header.request_id, 2U);
}

TEST(GatewayBounds, SoAreRefusals) {
  Limits limits;
  limits.max_output = 16U << 10U;
  Bench bench(limits);
  TestClient client(bench, true, 4096);
  ASSERT_TRUE(client.hello(0));
  const Bytes request = frame(static_cast<Opcode>(0x7FFF), {}, 0, 1);
  const std::size_t one = wire::kHeaderBytes + client.call(request)->body.size();
  const std::size_t count = send_many(bench, client, request);
  const std::size_t made = one * (bench.counter(Counter::bad_requests) - 1);
  EXPECT_LE(made - taken_by_socket(client), limits.max_output + one);
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_TRUE(client.reply()) << i << " of " << count;
}

// Also where the answers are small.
TEST(GatewayBounds, OthersHaveTheirTurnBetweenManyRequests) {
  Bench bench;
  TestClient many(bench);
  TestClient other(bench);
  ASSERT_TRUE(many.hello(0));
  ASSERT_TRUE(other.hello(0));
  const Bytes requests = one_read_of(frame(static_cast<Opcode>(0x7FFF), {}, 0, 1));
  ASSERT_EQ(::send(many.fd(), requests.data(), requests.size(), MSG_NOSIGNAL),
            static_cast<long>(requests.size()));
  ASSERT_EQ(other.call(frame(Opcode::exists, {}, 0, 1))->status(), FrameStatus::bad_request);
  EXPECT_LT(bench.counter(Counter::bad_requests), 1000U);
  EXPECT_TRUE(bench.turn_until([&] { return bench.counter(Counter::bad_requests) == 2049; }))
      << "requests were forgotten";
}

// One session's inline GETs that it does not read, with room for as much as all sessions may have.
TEST(GatewayBounds, ASessionHasItsShareOfInlineMemory) {
  Limits limits;
  limits.inline_bytes = 4U << 20U;
  limits.session_inline_bytes = 1U << 20U;
  Bench bench(limits);
  TestClient greedy(bench, false, 4096);
  TestClient other(bench);
  ASSERT_TRUE(greedy.hello(0));
  ASSERT_TRUE(other.hello(0));
  ASSERT_EQ(greedy.call(inline_put(1, 100'000, 1))->entry(0, 4), wire::EntryStatus::ok);
  const auto room = Entries().add(key_of(1), 0, 1U << 20U, wire::kRegionInline);
  for (std::uint64_t id = 1; id <= 8; ++id)
    greedy.send(frame(Opcode::get, room.body, 1, id));
  bench.turn(20);
  EXPECT_EQ(bench.shared.inline_memory->used(), 2U << 20U) << "its share and one request";
  EXPECT_EQ(other.call(inline_put(2, 200'000, 1))->status(), FrameStatus::ok);
  // What waited is answered when the client reads.
  for (std::uint64_t id = 1; id <= 8; ++id) {
    const auto reply = greedy.reply();
    ASSERT_TRUE(reply) << id;
    EXPECT_EQ(reply->header.request_id, id);
    EXPECT_EQ(reply->entry(0, 8), wire::EntryStatus::ok);
  }
  EXPECT_EQ(bench.shared.inline_memory->used(), 0U);
}

// Nor do PUTs that the card takes slowly; they are all stored.
TEST(GatewayBounds, InlinePutsWaitForThoseBeforeThem) {
  Limits limits;
  limits.inline_bytes = 4U << 20U;
  limits.session_inline_bytes = 1U << 20U;
  Bench bench(limits);
  bench.queue().hold = true;
  TestClient client(bench);
  ASSERT_TRUE(client.hello(0));
  Bytes all;
  for (unsigned key = 1; key <= 16; ++key)
    append(all, inline_put(key, 500'000, key));
  std::span<const std::byte> rest(all);
  unsigned replies = 0;
  ASSERT_TRUE(bench.turn_until([&] {
    const ssize_t sent = ::send(client.fd(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent > 0) return rest = rest.subspan(static_cast<std::size_t>(sent)), false;
    EXPECT_LE(bench.shared.inline_memory->used(), 2U << 20U);
    bench.turn();
    if (!bench.queue().held.empty()) bench.queue().answer(0);
    client.receive();
    return rest.empty() && bench.queue().held.empty();
  }));
  while (replies < 16) {
    bench.queue().hold = false;
    bench.queue().answer_all();
    const auto reply = client.reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->entry(0, 4), wire::EntryStatus::ok);
    ++replies;
  }
}

// Reads a little now and then, so that there is always progress and never much.
TEST(GatewayBounds, AClientThatReadsTooSlowlyIsClosed) {
  Limits limits;
  limits.write_timeout = 400ms;
  limits.tick = 5ms;
  Bench bench(limits);
  TestClient slow(bench, true, 4096);
  ASSERT_TRUE(slow.hello(0));
  static_cast<void>(send_many(bench, slow, frame(Opcode::stats, {}, 0, 1)));
  auto next = Clock::now();
  std::byte all[65'536];
  EXPECT_TRUE(bench.turn_until([&] {
    if (Clock::now() < next) return bench.counter(Counter::sessions_stalled) == 1;
    next = Clock::now() + limits.write_timeout / 8;
    static_cast<void>(::recv(slow.fd(), all, sizeof all, 0));
    return false;
  }));
}

// Half of a frame is there when replies stop the reading for longer than a frame may take.
TEST(GatewayBounds, TimeInWhichAFrameIsLeftUnreadIsNotCounted) {
  Limits limits;
  limits.frame_timeout = 400ms;
  limits.max_output = 16U << 10U;
  limits.tick = 1ms;
  Bench bench(limits);
  TestClient client(bench, true, 4096);
  ASSERT_TRUE(client.hello(0));
  ASSERT_EQ(client.call(inline_put(1, 300'000, 1))->entry(0, 4), wire::EntryStatus::ok);
  bench.queue().hold = true;
  client.send(frame(Opcode::get, Entries().add(key_of(1), 0, 300'000, wire::kRegionInline).body, 1, 2));
  ASSERT_TRUE(bench.turn_until([&] { return !bench.queue().held.empty(); }));
  const Bytes put = inline_put(2, 150'000, 3);
  client.send(std::span(put).first(80'000));
  bench.queue().hold = false;
  bench.queue().answer_all();
  bench.turn();
  // Slowly and steadily.
  auto next = Clock::now();
  std::size_t got = 0;
  std::byte some[4096];
  EXPECT_TRUE(bench.turn_until([&] {
    if (Clock::now() < next) return false;
    next = Clock::now() + 8ms;
    const ssize_t more = ::recv(client.fd(), some, sizeof some, 0);
    if (more > 0) got += static_cast<std::size_t>(more);
    return got >= wire::kHeaderBytes + wire::kGetReplyEntryBytes + 300'000 || more == 0;
  }));
  const auto resumed = Clock::now();
  bench.turn_until([&] { return Clock::now() > resumed + 10 * limits.tick; });
  client.send(std::span(put).subspan(80'000));
  EXPECT_TRUE(bench.turn_until([&] { return bench.queue().values.size() == 2; }));
  EXPECT_EQ(bench.counter(Counter::protocol_errors), 0U);
}

}  // namespace
}  // namespace akv::gateway::test
