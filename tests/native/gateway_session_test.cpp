// Sessions over real sockets, with a card that does as told.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "gateway_support.hpp"
#include "vectors.hpp"

namespace akv::gateway::test {
namespace {

using wire::EntryStatus;
using wire::FrameStatus;
using wire::Opcode;

constexpr auto kInline = wire::kRegionInline;

// Each conversation of the shared vectors, byte by byte.
TEST(GatewaySession, ConversationsFollowTheSharedVectors) {
  const auto vectors = akv::test::read_vectors("protocol.json");
  ASSERT_FALSE(vectors["conversations"].empty());
  for (const auto& conversation : vectors["conversations"]) {
    const auto lent = conversation.value("lent_bytes", std::uint64_t{0});
    Bench bench({}, {}, 1U << 20U, lent, lent != 0);
    TestClient client(bench);
    for (const auto& step : conversation["steps"]) {
      SCOPED_TRACE(conversation["name"].get<std::string>() + ": " + step["name"].get<std::string>());
      const Bytes expected = akv::test::from_hex(step["expect"]);
      const Bytes request = akv::test::from_hex(step["send"]);
      const std::string card = step.value("card", "");
      bench.queue().hold = card == "misses the deadline";
      if (step.contains("descriptor_bytes")) {
        const UniqueFd file(::memfd_create("vector", MFD_CLOEXEC));
        ASSERT_EQ(::ftruncate(file.get(), step["descriptor_bytes"].get<off_t>()), 0);
        client.send_with({file.get()}, request);
      } else {
        client.send(request);
      }
      if (bench.queue().hold) {
        ASSERT_TRUE(bench.turn_until([&] { return !bench.queue().held.empty(); }));
        bench.queue().time_out(0);
      }
      if (card == "lets go") bench.queue().release_late();
      bench.turn_until([&] { return !client.receive() || client.received.size() >= expected.size(); });
      EXPECT_EQ(client.received, expected);
      client.received.clear();
    }
  }
}

TEST(GatewaySession, StatsFollowTheSharedVectors) {
  const Bytes request = akv::test::from_hex(akv::test::read_vectors("protocol.json")["stats"]);
  Bench bench;
  TestClient client(bench);
  ASSERT_TRUE(client.hello(0));
  const auto reply = client.call(request);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status(), FrameStatus::ok);
  EXPECT_EQ(reply->header.opcode, static_cast<std::uint16_t>(Opcode::stats) | wire::kReply);
  EXPECT_EQ(reply->header.count, 0U);
  EXPECT_EQ(reply->header.request_id, 9U);
  const auto counters = nlohmann::json::parse(
      std::string_view(reinterpret_cast<const char*>(reply->body.data()), reply->body.size()));
  ASSERT_FALSE(counters.empty());
  for (const auto& [name, value] : counters.items())
    EXPECT_TRUE(value.is_number_unsigned()) << name;
}

TEST(GatewaySession, TheDescriptorComesWithTheFirstByteAndIsTheArena) {
  Bench bench;
  TestClient client(bench);
  const auto welcome = client.hello(3 * 4096 - 1);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(client.fd_offset, 0U);
  EXPECT_EQ(welcome->number<std::uint64_t>(8), 3U * 4096);
  struct stat info{};
  ASSERT_EQ(::fstat(client.memory_fd.get(), &info), 0);
  EXPECT_EQ(info.st_size, 3 * 4096);
  EXPECT_EQ(::fcntl(client.memory_fd.get(), F_GET_SEALS), F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
}

TEST(GatewaySession, MemoryIsGrantedAsFarAsItGoesAndComesBack) {
  Bench bench({}, {}, 10 * 4096);
  {
    TestClient first(bench);
    EXPECT_EQ(first.hello(8 * 4096)->number<std::uint64_t>(8), 8U * 4096);
    TestClient second(bench);
    EXPECT_EQ(second.hello(~std::uint64_t{0})->number<std::uint64_t>(8), 2U * 4096);
    TestClient third(bench);
    const auto welcome = third.hello(4096);
    EXPECT_EQ(welcome->number<std::uint64_t>(8), 0U);
    EXPECT_EQ(welcome->number<std::uint32_t>(4), 0U) << "a feature without memory";
    EXPECT_FALSE(third.memory_fd);
  }
  EXPECT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() == 0; }));
  EXPECT_EQ(bench.shared.arena->used(), 0U);
}

TEST(GatewaySession, NoSharedMemoryOverTcp) {
  Bench bench;
  TestClient client(bench, false);
  EXPECT_EQ(client.hello(4096)->number<std::uint64_t>(8), 0U);
  EXPECT_FALSE(client.memory_fd);
}

struct BadRequest {
  const char* name;
  Bytes frame;
  FrameStatus status;
};

std::vector<BadRequest> bad_requests() {
  const Bytes key = key_of(1);
  const auto transfer = [](Opcode opcode, const Entries& entries, std::uint32_t count) {
    return frame(opcode, entries.body, count, 9);
  };
  return {
      {"count 0", frame(Opcode::exists, {}, 0, 9), FrameStatus::bad_request},
      {"count above the batch", frame(Opcode::exists, Bytes(32 * 4097), 4097, 9), FrameStatus::bad_request},
      {"count far above the body", frame(Opcode::get, Bytes(48), 0xFFFFFFFF, 9), FrameStatus::bad_request},
      {"keys cut", frame(Opcode::remove, Bytes(63), 2, 9), FrameStatus::bad_request},
      {"keys and more", frame(Opcode::exists, Bytes(65), 2, 9), FrameStatus::bad_request},
      {"a status that EXISTS has not", frame(Opcode::exists, key, 1, 9, 2), FrameStatus::bad_request},
      {"a status in DELETE", frame(Opcode::remove, key, 1, 9, 1), FrameStatus::bad_request},
      {"a status in ALLOC", frame(Opcode::alloc, Bytes(4, std::byte{1}), 1, 9, 1), FrameStatus::bad_request},
      {"length 0 in ALLOC", frame(Opcode::alloc, Bytes(4), 1, 9), FrameStatus::bad_request},
      {"length above max_value", frame(Opcode::alloc, Bytes(4, std::byte{0xFF}), 1, 9),
       FrameStatus::bad_request},
      {"ALLOC cut", frame(Opcode::alloc, Bytes(7), 2, 9), FrameStatus::bad_request},
      {"FREE cut", frame(Opcode::free, Bytes(7), 1, 9), FrameStatus::bad_request},
      {"entry cut", transfer(Opcode::get, Entries().add(key, 0, 1), 2), FrameStatus::bad_request},
      {"length 0", transfer(Opcode::put, Entries().add(key, 0, 0), 1), FrameStatus::bad_request},
      {"unknown region", transfer(Opcode::get, Entries().add(key, 0, 1, 5), 1), FrameStatus::bad_request},
      {"flags", transfer(Opcode::get, Entries().add(key, 0, 1, 0, 1), 1), FrameStatus::bad_request},
      {"mixed regions", transfer(Opcode::get, Entries().add(key, 0, 1).add(key, 0, 1, kInline), 2),
       FrameStatus::bad_request},
      {"inline payload cut", transfer(Opcode::put, Entries().add(key, 0, 5, kInline), 1),
       FrameStatus::bad_request},
      {"payload in a shared PUT", frame(Opcode::put, Bytes(49), 1, 9), FrameStatus::bad_request},
      {"inline reply above max_frame",
       transfer(Opcode::get, Entries().add(key, 0, 32U << 20U, kInline).add(key, 0, 32U << 20U, kInline), 2),
       FrameStatus::bad_request},
      {"STATS with a body", frame(Opcode::stats, Bytes(1), 0, 9), FrameStatus::bad_request},
      {"a second HELLO", frame(Opcode::hello, hello_body(0), 0, 9), FrameStatus::bad_request},
      {"unknown opcode", frame(static_cast<Opcode>(0x7FFF), {}, 0, 9), FrameStatus::unsupported},
      {"opcode 0", frame(static_cast<Opcode>(0), {}, 0, 9), FrameStatus::unsupported},
  };
}

TEST(GatewaySession, ABadRequestIsAnErrorAndTheSessionGoesOn) {
  Bench bench;
  TestClient client(bench);
  ASSERT_TRUE(client.hello(4096));
  for (const auto& [name, bytes, status] : bad_requests()) {
    SCOPED_TRACE(name);
    const auto reply = client.call(bytes);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->header.opcode, wire::kErrorOpcode);
    EXPECT_EQ(reply->status(), status);
    EXPECT_EQ(reply->header.request_id, 9U);
    EXPECT_FALSE(reply->body.empty());
  }
  EXPECT_EQ(client.call(frame(Opcode::stats, {}, 0, 10))->status(), FrameStatus::ok);
  EXPECT_EQ(bench.counter(Counter::bad_requests), bad_requests().size());
}

TEST(GatewaySession, ABrokenStreamIsAnErrorAndTheEnd) {
  Bytes magic = frame(Opcode::stats, {}, 0, 3);
  magic[1] = {};
  Bytes huge = frame(Opcode::put, {}, 1, 3);
  store_le(huge.data() + 4, std::uint32_t{0xFFFFFFF0});
  const Bytes reply = frame(static_cast<Opcode>(0x8005), {}, 0, 3);
  for (const Bytes& bytes : {magic, huge, reply}) {
    Bench bench;
    TestClient client(bench);
    ASSERT_TRUE(client.hello(0));
    const auto error = client.call(bytes);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->header.opcode, wire::kErrorOpcode);
    EXPECT_TRUE(client.closed());
    client.hang_up();
    EXPECT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() == 0; }));
    EXPECT_EQ(bench.counter(Counter::protocol_errors), 1U);
  }
}

TEST(GatewaySession, BeforeHelloNothingElseIsTaken) {
  Bench bench;
  TestClient early(bench);
  EXPECT_EQ(early.call(frame(Opcode::stats, {}, 0, 5))->header.opcode, wire::kErrorOpcode);
  EXPECT_TRUE(early.closed());
  TestClient large(bench);
  EXPECT_EQ(large.call(frame(Opcode::hello, Bytes(5000), 0, 5))->header.opcode, wire::kErrorOpcode);
  EXPECT_TRUE(large.closed());
}

TEST(GatewaySession, TheErrorArrivesThoughMoreIsSent) {
  Bench bench;
  TestClient client(bench);
  client.send(Bytes(200'000, std::byte{0x55}));
  const auto error = client.reply();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->header.opcode, wire::kErrorOpcode);
}

TEST(GatewaySession, SilentAndHalfOpenConnectionsEnd) {
  Limits limits;
  limits.hello_timeout = 30ms;
  limits.frame_timeout = 30ms;
  limits.close_timeout = 30ms;
  limits.tick = 5ms;
  Bench bench(limits);
  TestClient silent(bench);
  TestClient half(bench);
  ASSERT_TRUE(half.hello(0));
  const Bytes request = frame(Opcode::stats, {}, 0, 1);
  half.send(std::span(request).first(20));
  TestClient idle(bench);
  ASSERT_TRUE(idle.hello(0));
  EXPECT_EQ(silent.reply()->header.opcode, wire::kErrorOpcode);
  EXPECT_TRUE(silent.closed());
  EXPECT_EQ(half.reply()->header.opcode, wire::kErrorOpcode);
  EXPECT_TRUE(half.closed());
  EXPECT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() == 1; })) << "they linger";
  EXPECT_EQ(idle.call(frame(Opcode::stats, {}, 0, 1))->status(), FrameStatus::ok)
      << "an idle session was ended";
}

TEST(GatewaySession, AClientThatDoesNotReadIsClosedAndHarmsNoOther) {
  Limits limits;
  limits.write_timeout = 100ms;
  limits.max_output = 64U << 10U;
  limits.tick = 5ms;
  Bench bench(limits);
  TestClient lazy(bench);
  ASSERT_TRUE(lazy.hello(0));
  const Bytes stats = frame(Opcode::stats, {}, 0, 1);
  // Until nothing more is taken: the gateway stops reading what it can't answer.
  bench.turn_until([&] {
    for (int i = 0; i < 100; ++i)
      static_cast<void>(::send(lazy.fd(), stats.data(), stats.size(), MSG_NOSIGNAL));
    return bench.counter(Counter::sessions_stalled) == 1;
  });
  EXPECT_EQ(bench.counter(Counter::sessions_stalled), 1U);
  TestClient other(bench);
  ASSERT_TRUE(other.hello(0));
  EXPECT_EQ(other.call(stats)->status(), FrameStatus::ok);
}

TEST(GatewaySession, AConnectionThatCantBeServedIsCounted) {
  Bench bench;
  UniqueFd no_socket(::memfd_create("no socket", MFD_CLOEXEC));  // epoll takes no files
  bench.worker.adopt(std::move(no_socket), true);
  EXPECT_EQ(bench.counter(Counter::sessions_refused), 1U);
  EXPECT_EQ(bench.shared.sessions.load(), 0U);
}

TEST(GatewaySession, OneRequestMoreThanTheCreditsIsBusy) {
  Limits limits;
  limits.credits = 3;
  Bench bench(limits);
  bench.queue().hold = true;
  TestClient client(bench);
  ASSERT_TRUE(client.hello(0));
  for (std::uint64_t id = 1; id <= 3; ++id)
    client.send(frame(Opcode::exists, key_of(1), 1, id));
  const auto busy = client.call(frame(Opcode::exists, key_of(1), 1, 4));
  ASSERT_TRUE(busy);
  EXPECT_EQ(busy->status(), FrameStatus::busy);
  EXPECT_EQ(busy->header.request_id, 4U);
  EXPECT_EQ(client.call(frame(Opcode::stats, {}, 0, 5))->status(), FrameStatus::ok)
      << "STATS takes no credit";
  bench.turn_until([&] { return bench.queue().held.size() == 3; });
  bench.queue().answer_all();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(client.reply()->status(), FrameStatus::ok);
  client.send(frame(Opcode::exists, key_of(1), 1, 6));
  EXPECT_TRUE(bench.turn_until([&] { return bench.queue().held.size() == 1; }));
}

TEST(GatewaySession, EntriesOfASessionAreBounded) {
  Limits limits;
  limits.max_session_entries = 5000;
  Bench bench(limits);
  bench.queue().hold = true;
  TestClient client(bench);
  const auto welcome = client.hello(0);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->number<std::uint32_t>(36), 5000U) << "the limit is not told";
  client.send(frame(Opcode::exists, Bytes(32 * 4096), 4096, 1));
  EXPECT_EQ(client.call(frame(Opcode::exists, Bytes(32 * 1000), 1000, 2))->status(), FrameStatus::busy);
}

TEST(GatewaySession, AnOutstandingIdCantBeUsedAgain) {
  Bench bench;
  bench.queue().hold = true;
  TestClient client(bench);
  ASSERT_TRUE(client.hello(0));
  client.send(frame(Opcode::exists, key_of(1), 1, 1));
  EXPECT_EQ(client.call(frame(Opcode::exists, key_of(1), 1, 1))->status(), FrameStatus::bad_request);
}

TEST(GatewaySession, InlineMemoryIsBoundedAndComesBack) {
  Limits limits;
  limits.inline_bytes = 300'000;
  Bench bench(limits);
  bench.queue().hold = true;
  TestClient client(bench);
  ASSERT_TRUE(client.hello(0));
  const auto put = [&](unsigned id) {
    auto entries = Entries().add(key_of(id), 0, 200'000, kInline);
    append(entries.body, Bytes(200'000));
    return frame(Opcode::put, entries.body, 1, id);
  };
  client.send(put(1));
  EXPECT_EQ(client.call(put(2))->status(), FrameStatus::busy);
  const auto get = Entries().add(key_of(3), 0, 200'000, kInline);
  EXPECT_EQ(client.call(frame(Opcode::get, get.body, 1, 3))->status(), FrameStatus::busy);
  bench.queue().hold = false;
  bench.queue().answer_all();
  EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::ok);
  EXPECT_EQ(client.call(put(4))->entry(0, 4), EntryStatus::ok);
  EXPECT_EQ(bench.shared.inline_memory->used(), 0U);
}

TEST(GatewaySession, InlineBlocksAboveMaxValueAreTooLarge) {
  Limits limits;
  limits.max_value = 1000;
  Bench bench(limits);
  TestClient client(bench);
  ASSERT_TRUE(client.hello(0));
  auto entries = Entries().add(key_of(1), 0, 1001, kInline).add(key_of(2), 0, 1000, kInline);
  append(entries.body, Bytes(2001));
  const auto reply = client.call(frame(Opcode::put, entries.body, 2, 1));
  EXPECT_EQ(reply->entry(0, 4), EntryStatus::too_large);
  EXPECT_EQ(reply->entry(1, 4), EntryStatus::ok);
}

TEST(GatewaySession, ShutDownAnswersWhatIsOutstanding) {
  Bench bench;
  bench.queue().hold = true;
  TestClient client(bench);
  ASSERT_TRUE(client.hello(0));
  client.send(frame(Opcode::exists, key_of(1), 1, 1));
  bench.turn_until([&] { return !bench.queue().held.empty(); });
  bench.worker.shut_down_sessions();
  EXPECT_EQ(client.call(frame(Opcode::exists, key_of(1), 1, 2))->status(), FrameStatus::shutting_down);
  bench.queue().answer_all();
  EXPECT_EQ(client.reply()->status(), FrameStatus::ok);
  EXPECT_TRUE(client.closed());
}

// Random bytes after a good HELLO, in random pieces: the session ends or goes on, memory and sessions come
// back.
TEST(GatewaySession, GarbageHarmsNothing) {
  Limits limits;
  limits.close_timeout = 5ms;
  limits.tick = 1ms;
  Bench bench(limits);
  TestClient witness(bench);
  ASSERT_TRUE(witness.hello(0));
  for (unsigned round = 0; round < 300; ++round) {
    TestClient client(bench);
    if (round % 2 == 0) {
      ASSERT_TRUE(client.hello(4096));
    }
    Bytes noise = payload_of(1 + round * 13, round);
    if (round % 3 == 0) {
      Bytes request = frame(static_cast<Opcode>(1 + round % 9), noise, round % 5, round);
      noise = std::move(request);
    }
    client.send(noise);
    bench.turn(2);
  }
  EXPECT_EQ(witness.call(frame(Opcode::stats, {}, 0, 1))->status(), FrameStatus::ok);
  EXPECT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() == 1; }));
  EXPECT_EQ(bench.shared.arena->used(), 0U);
  EXPECT_EQ(bench.shared.inline_memory->used(), 0U);
}

}  // namespace
}  // namespace akv::gateway::test
