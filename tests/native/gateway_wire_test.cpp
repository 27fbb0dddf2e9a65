// Codecs, HELLO and the cutting of the stream, without sockets.
#include <gtest/gtest.h>

#include <random>

#include "gateway/counters.hpp"
#include "gateway/frame_reader.hpp"
#include "gateway/handshake.hpp"
#include "gateway/requests.hpp"
#include "gateway_support.hpp"
#include "vectors.hpp"

namespace akv::gateway::test {
namespace {

using akv::test::array_from_hex;

TEST(GatewayWire, HelloFieldsAreRead) {
  const auto hello = wire::decode_hello(hello_body(12345, "modèle"));
  EXPECT_EQ(hello.version_min, 1);
  EXPECT_EQ(hello.features, wire::kFeatureSharedMemory);
  EXPECT_EQ(hello.arena_bytes, 12345U);
  EXPECT_EQ(hello.name_space, "modèle");
  EXPECT_TRUE(hello.mac_is_zero());
}

TEST(GatewayWire, EveryCutHelloIsRefused) {
  const Bytes body = hello_body(1, "default");
  for (std::size_t size = 0; size < body.size(); ++size) {
    EXPECT_THROW(static_cast<void>(wire::decode_hello(std::span(body).first(size))), wire::BadBody);
  }
}

TEST(GatewayWire, NamespacesThatAreNoTextAreRefused) {
  using namespace std::string_view_literals;
  const std::string longest(128, 'n');
  EXPECT_NO_THROW(static_cast<void>(wire::decode_hello(hello_body(0, longest))));
  EXPECT_NO_THROW(static_cast<void>(wire::decode_hello(hello_body(0, "\xF0\x9F\x98\x80"))));
  for (const auto bad : {""sv, "a\0b"sv, "\xFF"sv, "\xC3"sv, "\xC0\xAF"sv, "\xE0\x80\x80"sv, "\xED\xA0\x80"sv,
                         "\xF4\x90\x80\x80"sv, "\x80"sv}) {
    EXPECT_THROW(static_cast<void>(wire::decode_hello(hello_body(0, bad))), wire::BadBody);
  }
  EXPECT_THROW(static_cast<void>(wire::decode_hello(hello_body(0, longest + "n"))), wire::BadBody);
}

TEST(GatewayHandshake, MacsFollowTheSharedVectors) {
  const auto vectors = akv::test::read_vectors("protocol.json");
  ASSERT_FALSE(vectors["macs"].empty());
  for (const auto& row : vectors["macs"]) {
    const auto mac =
        session_mac(row["label"].get<std::string>(), array_from_hex<kv::Secret>(row["secret"]),
                    array_from_hex<wire::Nonce>(row["client_nonce"]),
                    array_from_hex<wire::Nonce>(row["server_nonce"]), row["namespace"].get<std::string>());
    EXPECT_EQ(mac, array_from_hex<wire::Mac>(row["mac"]));
  }
}

class GatewayHandshakeSecrets : public testing::Test {
 protected:
  wire::Hello hello(std::string name = "team") {
    wire::Hello made{.version_min = 1, .version_max = 1, .name_space = std::move(name)};
    made.client_nonce.fill(std::byte{3});
    return made;
  }
  void prove(wire::Hello& made, const kv::Secret& with) {
    made.mac = session_mac(kClientLabel, with, made.client_nonce, nonce, made.name_space);
  }
  wire::Nonce nonce{std::byte{9}};
  kv::Secret secret{std::byte{5}};
  Secrets secrets{{"team", secret}, {"other", {}}};
  Handshake handshake{secrets, [this] { return nonce; }};
};

TEST_F(GatewayHandshakeSecrets, ProofOpensTheSession) {
  auto request = hello();
  auto outcome = handshake.receive(request);
  EXPECT_EQ(outcome.status, wire::FrameStatus::auth_required);
  EXPECT_EQ(outcome.server_nonce, nonce);
  prove(request, secret);
  outcome = handshake.receive(request);
  EXPECT_EQ(outcome.status, wire::FrameStatus::ok);
  EXPECT_EQ(outcome.secret, secret);
  EXPECT_EQ(outcome.server_mac,
            session_mac(kServerLabel, secret, request.client_nonce, nonce, request.name_space));
}

TEST_F(GatewayHandshakeSecrets, WhatProvesNothingIsRefused) {
  auto request = hello();
  static_cast<void>(handshake.receive(request));
  prove(request, kv::Secret{});
  EXPECT_EQ(handshake.receive(request).status, wire::FrameStatus::auth_failed);
  prove(request, secret);
  request.client_nonce[0] = {};
  EXPECT_EQ(handshake.receive(request).status, wire::FrameStatus::auth_failed);
  auto other = hello("other");
  prove(other, secret);
  EXPECT_EQ(handshake.receive(other).status, wire::FrameStatus::auth_failed);
  EXPECT_EQ(handshake.receive(hello("stranger")).status, wire::FrameStatus::auth_failed);
}

TEST_F(GatewayHandshakeSecrets, AMacBeforeTheNonceIsRefused) {
  auto request = hello();
  prove(request, secret);
  EXPECT_EQ(handshake.receive(request).status, wire::FrameStatus::auth_failed);
}

// The reader's frames of a stream that comes in pieces of random sizes.
std::vector<Frame> read_in_pieces(FrameReader& reader, std::span<const std::byte> stream, std::size_t most,
                                  std::vector<Bytes>& bodies) {
  std::mt19937 random(11);
  std::vector<Frame> frames;
  while (!stream.empty()) {
    const auto into = reader.buffer();
    const std::size_t count = std::min({1 + random() % most, stream.size(), into.size()});
    std::copy_n(stream.begin(), count, into.begin());
    stream = stream.subspan(count);
    reader.received(count);
    while (auto next = reader.next()) {
      bodies.emplace_back(next->body.begin(), next->body.end());
      frames.push_back(std::move(*next));
    }
  }
  return frames;
}

TEST(GatewayReader, CutsTheStreamWhereverItComesApart) {
  std::vector<Bytes> bodies;
  Bytes stream;
  for (unsigned i = 0; i < 40; ++i) {
    bodies.push_back(payload_of(i % 7 == 3 ? 100'000 + i : i * 37, i));
    append(stream, frame(wire::Opcode::put, bodies.back(), i, i));
  }
  for (const std::size_t most : {1U, 31U, 4096U, 1U << 20U}) {
    const auto budget = arena::Budget::make(1U << 20U);
    FrameReader reader(budget);
    reader.set_max_body(1U << 20U);
    std::vector<Bytes> got;
    {
      const auto frames = read_in_pieces(reader, stream, most, got);
      ASSERT_EQ(frames.size(), bodies.size());
      for (unsigned i = 0; i < frames.size(); ++i)
        EXPECT_EQ(frames[i].header.request_id, i);
    }
    EXPECT_EQ(got, bodies);
    EXPECT_FALSE(reader.in_frame());
    EXPECT_EQ(budget->used(), 0U);
  }
}

TEST(GatewayReader, AFrameWithoutMemoryIsSkippedAndTheNextOneRead) {
  FrameReader reader(arena::Budget::make(1000));
  reader.set_max_body(1U << 20U);
  Bytes stream = frame(wire::Opcode::put, Bytes(500'000), 1, 1);
  append(stream, frame(wire::Opcode::get, Bytes(10), 1, 2));
  std::vector<Bytes> bodies;
  const auto frames = read_in_pieces(reader, stream, 70'000, bodies);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_TRUE(frames[0].dropped);
  EXPECT_FALSE(frames[1].dropped);
  EXPECT_EQ(bodies[1].size(), 10U);
}

TEST(GatewayReader, WhatIsNoRequestBreaksTheStream) {
  const auto broken = [](std::size_t at, std::byte value) {
    FrameReader reader(arena::Budget::make(1U << 20U));
    Bytes bytes = frame(wire::Opcode::stats, {}, 0, 77);
    bytes[at] = value;
    std::copy(bytes.begin(), bytes.end(), reader.buffer().begin());
    reader.received(bytes.size());
    try {
      static_cast<void>(reader.next());
    } catch (const BadStream& bad) {
      return bad.text;
    }
    return std::string();
  };
  EXPECT_NE(broken(0, std::byte{0}).find("magic"), std::string::npos);
  EXPECT_NE(broken(6, std::byte{1}).find("above the limit of 4096"), std::string::npos);
  EXPECT_NE(broken(9, std::byte{0x80}).find("not a request"), std::string::npos);
  EXPECT_EQ(broken(24, std::byte{1}), "");
}

TEST(GatewayReader, AHugeClaimTakesNoMemory) {
  const auto budget = arena::Budget::make(64U << 20U);
  FrameReader reader(budget);
  reader.set_max_body(32U << 20U);
  Bytes header = frame(wire::Opcode::put, {}, 1, 1);
  store_le(header.data() + 4, std::uint32_t{0xFFFFFFFF});
  std::copy(header.begin(), header.end(), reader.buffer().begin());
  reader.received(header.size());
  EXPECT_THROW(static_cast<void>(reader.next()), BadStream);
  EXPECT_EQ(budget->used(), 0U);
}

// Random bodies of every request, with right headers: decoded or refused, nothing else (sanitizers look on).
TEST(GatewayRequests, RandomBodiesAreDecodedOrRefused) {
  std::mt19937 random(3);
  const Limits limits;
  for (int round = 0; round < 20'000; ++round) {
    const auto opcode = static_cast<wire::Opcode>(1 + random() % 10);
    Bytes body = payload_of(random() % 300, static_cast<unsigned>(round));
    for (std::size_t at = 44; at + 4 <= body.size() && random() % 2 == 0; at += 48)
      store_le(body.data() + at, random() % 2 == 0 ? 0U : 0xFFFFU);
    Frame made{.header = {.opcode = static_cast<std::uint16_t>(opcode),
                          .status = static_cast<std::uint16_t>(random() % 3 == 0),
                          .count = static_cast<std::uint32_t>(random() % 8)},
               .body = body,
               .owner = nullptr};
    const auto attempt = [&](auto decode) {
      try {
        static_cast<void>(decode(made));
      } catch (const wire::BadBody& bad) {
        EXPECT_FALSE(bad.text.empty());
      }
    };
    attempt([](const Frame& f) { return wire::decode_hello(f.body); });
    attempt([&](const Frame& f) { return decode_transfers(f, limits, round % 2 == 0); });
    attempt([](const Frame& f) { return decode_register(f); });
    attempt([](const Frame& f) { return decode_unregister(f); });
    attempt([&](const Frame& f) { return decode_lengths(f, limits); });
    attempt([](const Frame& f) { return decode_offsets(f); });
    attempt([](const Frame& f) { return decode_keys(f); });
  }
}

TEST(GatewayCounters, EachHasANameOfItsOwn) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kCounters; ++i)
    names.push_back(name_of(static_cast<Counter>(i)));
  std::ranges::sort(names);
  EXPECT_FALSE(names.front().empty());
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

}  // namespace
}  // namespace akv::gateway::test
