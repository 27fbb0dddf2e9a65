// The initiator against a target that keeps to the protocol: every way data moves.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <future>

#include "fabric_client.hpp"
#include "fabric_support.hpp"

namespace akv::fabric::test {
namespace {

struct Digests {
  DigestPolicy header;
  DigestPolicy data;
};

TcpQueuePairConfig config_for(const ScriptedTarget& target,
                              Digests digests = {DigestPolicy::off, DigestPolicy::off}) {
  return {.address = target.address(),
          .in_capsule_bytes = 8192,
          .header_digest = digests.header,
          .data_digest = digests.data};
}

nvme::Sqe next_sqe(Peer& peer) {
  return peer.receive().as<nvme::CapsuleCmd>().sqe;
}

class Transfer : public ::testing::TestWithParam<Digests> {};

INSTANTIATE_TEST_SUITE_P(Digests, Transfer,
                         ::testing::Values(Digests{DigestPolicy::off, DigestPolicy::off},
                                           Digests{DigestPolicy::require, DigestPolicy::off},
                                           Digests{DigestPolicy::off, DigestPolicy::require},
                                           Digests{DigestPolicy::require, DigestPolicy::require}));

TEST_P(Transfer, CommandsWithoutDataCarryAnEmptyTransportSgl) {
  ScriptedTarget target([](Peer& peer) {
    peer.greet();
    const auto sqe = next_sqe(peer);
    EXPECT_EQ(sqe.sgl.identifier, nvme::kSglTransport);
    EXPECT_EQ(sqe.sgl.length, 0U);
    peer.respond(sqe.cid, nvme::kSuccess, 0x1122334455667788ULL);
  });
  Client client(config_for(target, GetParam()));
  ASSERT_TRUE(client.connect());
  const auto response = client.call(command(0x18));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->cqe.result64(), 0x1122334455667788ULL);
}

// IOCCSZ (Base 5.17.2.1).
TEST_P(Transfer, AWriteThatFitsGoesInTheCapsule) {
  const auto value = pattern(8192, 1);
  ScriptedTarget target([&](Peer& peer) {
    peer.greet();
    const auto capsule = peer.receive();
    const auto sqe = capsule.as<nvme::CapsuleCmd>().sqe;
    EXPECT_EQ(sqe.sgl.identifier, nvme::kSglInCapsule);
    EXPECT_EQ(sqe.sgl.length, 8192U);
    EXPECT_EQ(capsule.data, value);
    peer.respond(sqe.cid);
  });
  Client client(config_for(target, GetParam()));
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(value.size());
  std::ranges::copy(value, buffer.bytes().begin());
  EXPECT_TRUE(client.call(command(kWrite, Direction::to_target, buffer.vectors())));
}

// Whatever IOCCSZ tells: a capsule holds up the commands behind it.
TEST(TransferQueue, AWriteBeyondTheInitiatorsOwnBoundDoesNotGoInTheCapsule) {
  const auto value = pattern(65537, 9);
  ScriptedTarget target([&](Peer& peer) {
    peer.greet();
    const auto within = peer.receive();
    EXPECT_EQ(within.as<nvme::CapsuleCmd>().sqe.sgl.identifier, nvme::kSglInCapsule);
    EXPECT_TRUE(std::ranges::equal(within.data, std::span(value).first(65536)));
    peer.respond(within.as<nvme::CapsuleCmd>().sqe.cid);
    const auto beyond = peer.receive();
    EXPECT_EQ(beyond.as<nvme::CapsuleCmd>().sqe.sgl.identifier, nvme::kSglTransport);
    EXPECT_TRUE(beyond.data.empty());
    peer.respond(beyond.as<nvme::CapsuleCmd>().sqe.cid);
  });
  auto config = config_for(target);
  config.in_capsule_bytes = 0xFFFFFFFF;
  config.h2c_bytes = 65536;
  Client client(config);
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(value.size());
  std::ranges::copy(value, buffer.bytes().begin());
  const iovec within{buffer.bytes().data(), 65536};
  EXPECT_TRUE(client.call(command(kWrite, Direction::to_target, std::span(&within, 1))));
  EXPECT_TRUE(client.call(command(kWrite, Direction::to_target, buffer.vectors())));
}

// MAXH2CDATA (TCP 3.6.2.3), H2CData (3.6.2.8), R2T (3.6.2.10): one after another.
TEST_P(Transfer, ALargeWriteWaitsForR2tAndKeepsToMaxH2cData) {
  const auto value = pattern(300001, 2);
  ScriptedTarget target([&](Peer& peer) {
    peer.greet({.maxh2cdata = 4096});
    const auto capsule = peer.receive();
    const auto cid = capsule.as<nvme::CapsuleCmd>().sqe.cid;
    EXPECT_TRUE(capsule.data.empty());
    EXPECT_EQ(capsule.as<nvme::CapsuleCmd>().sqe.sgl.identifier, nvme::kSglTransport);
    std::vector<std::byte> got;
    std::uint16_t ttag = 7;
    while (got.size() < value.size() && peer.ok()) {
      const auto piece = static_cast<std::uint32_t>(std::min<std::size_t>(100000, value.size() - got.size()));
      const std::size_t until = got.size() + piece;
      peer.send_r2t(cid, ++ttag, static_cast<std::uint32_t>(got.size()), piece);
      while (got.size() < until && peer.ok()) {
        const auto pdu = peer.receive();
        const auto data = pdu.as<nvme::DataPdu>();
        EXPECT_EQ(data.cccid, cid);
        EXPECT_EQ(data.ttag, ttag);
        EXPECT_EQ(data.datao, got.size());
        EXPECT_LE(pdu.data.size(), 4096U);
        got.insert(got.end(), pdu.data.begin(), pdu.data.end());
        EXPECT_EQ(pdu.header.flag(nvme::kPduLast), got.size() == until);
      }
    }
    EXPECT_EQ(got, value);
    peer.respond(cid);
  });
  Client client(config_for(target, GetParam()));
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(value.size());
  std::ranges::copy(value, buffer.bytes().begin());
  EXPECT_TRUE(client.call(command(kWrite, Direction::to_target, buffer.vectors())));
}

// C2HData (TCP 3.6.2.9): as many PDUs as the target likes.
TEST_P(Transfer, ReadsArriveInSeveralPdusAndInAnySegments) {
  const auto value = pattern(100003, 3);
  ScriptedTarget target([&](Peer& peer) {
    peer.greet();
    const auto cid = next_sqe(peer).cid;
    std::uint32_t at = 0;
    std::uint32_t piece = 1;
    while (at < value.size() && peer.ok()) {
      const auto size = static_cast<std::uint32_t>(std::min<std::size_t>(piece, value.size() - at));
      peer.send_data(cid, at, std::span(value).subspan(at, size),
                     at + size == value.size() ? nvme::kPduLast : std::uint8_t{0});
      at += size;
      piece = piece * 3 + 1;
    }
    nvme::CapsuleResp response;
    response.cqe.cid = cid;
    for (const std::byte byte : peer.encode(response))
      peer.send_bytes(std::span(&byte, 1));
  });
  Client client(config_for(target, GetParam()));
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(value.size());
  const auto response = client.call(command(kRead, Direction::from_target, buffer.vectors()));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->received, value.size());
  EXPECT_TRUE(std::ranges::equal(buffer.bytes(), value));
  EXPECT_TRUE(buffer.guards_intact());
  const auto& arrivals = client.arrivals.at(1);
  EXPECT_EQ(std::ranges::adjacent_find(arrivals, std::greater_equal<>()), arrivals.end())
      << "ever more bytes";
  EXPECT_EQ(arrivals.back(), value.size());
}

// What came of a payload is told while the rest is on its way, whatever becomes of it.
TEST_P(Transfer, PartsAreToldBeforeTheWholeAndTheWholeIsNotToldAfterACut) {
  const auto value = pattern(1U << 20U, 3);
  std::promise<void> told;
  ScriptedTarget target([&](Peer& peer) {
    peer.greet();
    nvme::DataPdu pdu;
    pdu.common.type = static_cast<std::uint8_t>(nvme::PduType::c2h_data);
    pdu.common.flags = nvme::kPduLast;
    pdu.cccid = next_sqe(peer).cid;
    pdu.datal = static_cast<std::uint32_t>(value.size());
    const auto bytes = peer.encode(pdu, value);
    peer.send_bytes(std::span(bytes).first(bytes.size() - 70000));
    EXPECT_EQ(told.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
    peer.shutdown();
  });
  Client client(config_for(target, GetParam()));
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(value.size());
  ASSERT_TRUE(client.queue_pair->submit(command(kRead, Direction::from_target, buffer.vectors()), 1));
  client.queue_pair->flush();
  EXPECT_TRUE(client.run_until([&] { return !client.arrivals[1].empty(); }));
  const auto first = client.arrivals[1].back();
  EXPECT_TRUE(std::ranges::equal(buffer.bytes().first(first), std::span(value).first(first)));
  told.set_value();
  EXPECT_TRUE(client.wait_closed());
  EXPECT_LT(client.arrivals[1].back(), value.size());
  EXPECT_TRUE(client.responses.empty());
}

// SUCCESS (TCP 3.6.2.9): no capsule follows.
TEST_P(Transfer, ShortAnswersAndTheSuccessFlag) {
  const auto value = pattern(1000, 4);
  ScriptedTarget target([&](Peer& peer) {
    peer.greet();
    const auto cid = next_sqe(peer).cid;
    peer.send_data(cid, 0, std::span(value).first(600), 0);
    peer.send_data(cid, 600, std::span(value).subspan(600), nvme::kPduLast | nvme::kPduDataSuccess);
  });
  Client client(config_for(target, GetParam()));
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(5000);
  const auto response = client.call(command(kRead, Direction::from_target, buffer.vectors()));
  ASSERT_TRUE(response);
  EXPECT_TRUE(response->synthetic);
  EXPECT_EQ(response->received, 1000U);
  EXPECT_EQ(client.arrivals.at(1).back(), 1000U);
  EXPECT_TRUE(std::ranges::equal(buffer.bytes().first(1000), value));
}

// CPDA (TCP 3.6.1): where the data of a capsule begins.
TEST_P(Transfer, DataIsAlignedAsTheTargetAsks) {
  const auto value = pattern(1000, 5);
  ScriptedTarget target([&](Peer& peer) {
    peer.greet({.cpda = 31, .maxh2cdata = 65536});
    const auto capsule = peer.receive();
    EXPECT_EQ(capsule.header.prefix, 128U);
    EXPECT_EQ(capsule.data, value);
    peer.respond(capsule.as<nvme::CapsuleCmd>().sqe.cid);
  });
  Client client(config_for(target, GetParam()));
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(value.size());
  std::ranges::copy(value, buffer.bytes().begin());
  EXPECT_TRUE(client.call(command(kWrite, Direction::to_target, buffer.vectors())));
}

// HPDA (TCP 3.6.1): where the data of a C2HData PDU begins.
TEST_P(Transfer, PaddingBeforeReadDataIsSkippedAsHpdaAsks) {
  const auto value = pattern(500, 6);
  for (const auto hpda : {std::uint8_t{1}, std::uint8_t{7}, std::uint8_t{31}}) {
    ScriptedTarget target([&](Peer& peer) {
      EXPECT_EQ(peer.greet().hpda, hpda);
      const auto cid = next_sqe(peer).cid;
      peer.send_data(cid, 0, std::span(value).first(123), 0);
      peer.send_data(cid, 123, std::span(value).subspan(123), nvme::kPduLast);
      peer.respond(cid);
    });
    auto config = config_for(target, GetParam());
    config.hpda = hpda;
    Client client(config);
    ASSERT_TRUE(client.connect());
    GuardedBuffer buffer(value.size());
    ASSERT_TRUE(client.call(command(kRead, Direction::from_target, buffer.vectors())));
    EXPECT_TRUE(std::ranges::equal(buffer.bytes(), value));
    EXPECT_TRUE(buffer.guards_intact());
  }
}

TEST(TransferQueue, ManyCommandsAtOnceCompleteOutOfOrderAndFullQueuesRefuse) {
  ScriptedTarget target([](Peer& peer) {
    peer.greet();
    std::vector<std::uint16_t> cids;
    for (int i = 0; i < 32; ++i)
      cids.push_back(next_sqe(peer).cid);
    std::ranges::reverse(cids);
    for (const auto cid : cids)
      peer.respond(cid, nvme::kSuccess, cid);
  });
  Client client(config_for(target));
  ASSERT_TRUE(client.connect());
  for (std::uint32_t tag = 0; tag < 32; ++tag)
    EXPECT_TRUE(client.queue_pair->submit(command(0x14), tag));
  EXPECT_FALSE(client.queue_pair->submit(command(0x14), 99));
  client.queue_pair->flush();
  EXPECT_TRUE(client.run_until([&] { return client.responses.size() == 32; }));
}

TEST(TransferQueue, CommandIdsOfASlotDifferFromUseToUse) {
  std::vector<std::uint16_t> seen;
  ScriptedTarget target([&](Peer& peer) {
    peer.greet();
    for (int i = 0; i < 100; ++i) {
      seen.push_back(next_sqe(peer).cid);
      peer.respond(seen.back());
    }
  });
  {
    Client client(config_for(target));
    ASSERT_TRUE(client.connect());
    for (std::uint32_t tag = 0; tag < 100; ++tag)
      ASSERT_TRUE(client.call(command(0x14), tag));
  }
  target.stop();
  for (std::size_t i = 1; i < seen.size(); ++i)
    EXPECT_NE(seen[i - 1], seen[i]);
}

// The target gives up on a write while its data is on the way: the buffer must not be free before that has
// left.
TEST(TransferQueue, AnEarlyResponseWaitsUntilTheDataHasLeft) {
  std::promise<void> drain;
  ScriptedTarget target(
      [&](Peer& peer) {
        peer.greet({.maxh2cdata = 16U << 20U});
        const auto cid = next_sqe(peer).cid;
        peer.send_r2t(cid, 1, 0, 16U << 20U);
        std::array<std::byte, sizeof(nvme::DataPdu)> begun{};
        EXPECT_TRUE(peer.read_bytes(begun));
        peer.respond(cid, nvme::kInternalError);
        EXPECT_EQ(drain.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
        std::vector<std::byte> sink(1U << 20U);
        while (peer.read_bytes(sink)) {
        }
      },
      65536);
  auto config = config_for(target);
  config.h2c_bytes = 16U << 20U;
  Client client(config);
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(16U << 20U);
  ASSERT_TRUE(client.queue_pair->submit(command(kWrite, Direction::to_target, buffer.vectors()), 1));
  client.queue_pair->flush();
  for (int turn = 0; turn < 20; ++turn)
    client.reactor.run_once(std::chrono::milliseconds(10));
  EXPECT_TRUE(client.responses.empty());
  drain.set_value();
  EXPECT_TRUE(client.run_until([&] { return !client.responses.empty(); }));
  EXPECT_EQ(client.responses.at(1).cqe.status(), nvme::kInternalError);
  client.queue_pair->close("test is over");
}

// R2T and response in one segment: not a byte of the data has left when the command is over, and none
// follows.
TEST(TransferQueue, DataOfACommandThatIsOverIsNotSent) {
  ScriptedTarget target([](Peer& peer) {
    peer.greet();
    const auto cid = next_sqe(peer).cid;
    auto bytes = peer.encode(nvme::R2t{.cccid = cid, .ttag = 1, .r2to = 0, .r2tl = 65536});
    nvme::CapsuleResp response;
    response.cqe.cid = cid;
    response.cqe.set_status(nvme::kInternalError);
    const auto second = peer.encode(response);
    bytes.insert(bytes.end(), second.begin(), second.end());
    peer.send_bytes(bytes);
    const auto next = peer.receive();
    EXPECT_EQ(next.header.type, nvme::PduType::capsule_cmd);
    peer.respond(next.as<nvme::CapsuleCmd>().sqe.cid);
  });
  Client client(config_for(target));
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(65536);
  const auto response = client.call(command(kWrite, Direction::to_target, buffer.vectors()), 1);
  ASSERT_TRUE(response);
  EXPECT_EQ(response->cqe.status(), nvme::kInternalError);
  EXPECT_TRUE(client.call(command(0x14), 2));
}

// Linux nvmet (6.1) checks the data digest of each H2CData over the whole transfer: a write of one R2T goes
// in one PDU as far as the target's MAXH2CDATA lets it.
TEST(TransferQueue, WithDataDigestsAWriteIsNotCutWithoutNeed) {
  for (const bool digest : {false, true}) {
    std::vector<std::size_t> pieces;
    ScriptedTarget target([&](Peer& peer) {
      peer.greet({.maxh2cdata = 4U << 20U});
      const auto cid = next_sqe(peer).cid;
      peer.send_r2t(cid, 1, 0, 2U << 20U);
      for (std::size_t got = 0; got < (2U << 20U) && peer.ok(); got += pieces.back())
        pieces.push_back(peer.receive().data.size());
      peer.respond(cid);
    });
    Client client(
        config_for(target, {DigestPolicy::off, digest ? DigestPolicy::require : DigestPolicy::off}));
    ASSERT_TRUE(client.connect());
    GuardedBuffer buffer(2U << 20U);
    ASSERT_TRUE(client.call(command(kWrite, Direction::to_target, buffer.vectors())));
    EXPECT_EQ(pieces,
              digest ? std::vector<std::size_t>({2U << 20U}) : std::vector<std::size_t>(4, 512U << 10U));
  }
}

TEST(TransferQueue, AnOutstandingCommandsIdIsFoundByItsTag) {
  ScriptedTarget target([](Peer& peer) {
    peer.greet();
    const auto first = next_sqe(peer).cid;
    const auto second = next_sqe(peer).cid;
    peer.respond(second, nvme::kSuccess, second);
    peer.respond(first, nvme::kSuccess, first);
  });
  Client client(config_for(target));
  ASSERT_TRUE(client.connect());
  EXPECT_FALSE(client.queue_pair->command_id(1));
  ASSERT_TRUE(client.queue_pair->submit(command(0x14), 1));
  ASSERT_TRUE(client.queue_pair->submit(command(0x14), 2));
  const auto first = client.queue_pair->command_id(1);
  const auto second = client.queue_pair->command_id(2);
  client.queue_pair->flush();
  ASSERT_TRUE(client.run_until([&] { return client.responses.size() == 2; }));
  EXPECT_EQ(client.responses.at(1).cqe.dw0, first);
  EXPECT_EQ(client.responses.at(2).cqe.dw0, second);
  EXPECT_FALSE(client.queue_pair->command_id(2));
}

}  // namespace
}  // namespace akv::fabric::test
