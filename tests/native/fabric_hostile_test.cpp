// The initiator against a target that breaks the protocol: only its own connection may suffer.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "fabric_client.hpp"
#include "fabric_support.hpp"
#include "nvme/status.hpp"

namespace akv::fabric::test {
namespace {

constexpr std::uint32_t kBytes = 65536;

struct Attack {
  const char* name;
  bool write;  // the command that is outstanding: a write of kBytes through R2T, else a read of kBytes
  std::function<void(Peer&, std::uint16_t cid)> run;
  const char* reason;
  Ending ending{Ending::protocol};
};

nvme::DataPdu c2h(std::uint16_t cid, std::uint32_t offset, std::uint32_t length) {
  nvme::DataPdu pdu;
  pdu.common.type = static_cast<std::uint8_t>(nvme::PduType::c2h_data);
  pdu.cccid = cid;
  pdu.datao = offset;
  pdu.datal = length;
  return pdu;
}

void send_common(Peer& peer, nvme::CommonHeader header) {
  std::array<std::byte, 128> bytes{};
  nvme::write_wire(bytes, header);
  peer.send_bytes(bytes);
}

std::vector<Attack> attacks() {
  const auto data = pattern(kBytes + 4096, 1);
  const auto part = [data](std::size_t size) { return std::span(data).first(size); };
  return {
      {"DataOfAnUnknownCommand", false,
       [=](Peer& peer, auto cid) { peer.send_data(static_cast<std::uint16_t>(cid ^ 1), 0, part(64), 0); },
       "no outstanding command", Ending::wrong_id},
      {"DataOfAFormerGeneration", false,
       [=](Peer& peer, auto cid) { peer.send_data(static_cast<std::uint16_t>(cid + 1024), 0, part(64), 0); },
       "no outstanding command", Ending::wrong_id},
      {"DataBeyondTheBuffer", false,
       [=](Peer& peer, auto cid) { peer.send_data(cid, 0, part(kBytes + 4), 0); },
       "beyond the command's buffer", Ending::wrong_length},
      {"DataAtAWildOffset", false,
       [=](Peer& peer, auto cid) { peer.send_data(cid, 0xFFFFFFF0U, part(64), 0); }, "out of order"},
      {"DataTwice", false,
       [=](Peer& peer, auto cid) {
         peer.send_data(cid, 0, part(64), 0);
         peer.send_data(cid, 0, part(64), 0);
       },
       "out of order"},
      {"DataAfterTheLast", false,
       [=](Peer& peer, auto cid) {
         peer.send_data(cid, 0, part(64), nvme::kPduLast);
         peer.send_data(cid, 64, part(64), 0);
       },
       "expects none"},
      {"DataForAWrite", true, [=](Peer& peer, auto cid) { peer.send_data(cid, 0, part(64), 0); },
       "expects none"},
      {"LengthsThatDisagree", false,
       [=](Peer& peer, auto cid) {
         auto pdu = c2h(cid, 0, 32);
         peer.send(pdu, part(64));
       },
       "invalid PDU header field", Ending::wrong_length},
      {"SuccessWithoutLast", false,
       [=](Peer& peer, auto cid) { peer.send_data(cid, 0, part(64), nvme::kPduDataSuccess); },
       "invalid PDU header field"},
      {"EmptyData", false,
       [](Peer& peer, auto cid) {
         auto pdu = c2h(cid, 0, 0);
         pdu.common.pdo = 24;
         peer.send_bytes(nvme::wire_bytes(pdu));
       },
       "invalid PDU header field", Ending::wrong_length},
      {"HugePdu", false,
       [](Peer& peer, auto cid) {
         auto pdu = c2h(cid, 0, 0xFFFFFF00U);
         pdu.common.pdo = 24;
         pdu.common.plen = 0xFFFFFF18U;
         peer.send_bytes(nvme::wire_bytes(pdu));
       },
       "beyond the command's buffer", Ending::wrong_length},
      {"R2tForARead", false, [](Peer& peer, auto cid) { peer.send_r2t(cid, 1, 0, 64); }, "no data to send"},
      {"R2tOfAnUnknownCommand", true,
       [](Peer& peer, auto cid) { peer.send_r2t(static_cast<std::uint16_t>(cid + 5), 1, 0, 64); },
       "no outstanding command", Ending::wrong_id},
      {"R2tBeyondTheData", true, [](Peer& peer, auto cid) { peer.send_r2t(cid, 1, 0, kBytes + 1); },
       "beyond the command's data", Ending::wrong_length},
      {"R2tThatOverflows", true, [](Peer& peer, auto cid) { peer.send_r2t(cid, 1, 0, 0xFFFFFFFFU); },
       "beyond the command's data", Ending::wrong_length},
      {"R2tOutOfOrder", true, [](Peer& peer, auto cid) { peer.send_r2t(cid, 1, 64, 64); }, "out of order"},
      {"EmptyR2t", true, [](Peer& peer, auto cid) { peer.send_r2t(cid, 1, 0, 0); },
       "beyond the command's data", Ending::wrong_length},
      {"ResponseOfAnUnknownCommand", false,
       [](Peer& peer, auto cid) { peer.respond(static_cast<std::uint16_t>(cid ^ 2)); },
       "no outstanding command", Ending::wrong_id},
      {"ResponseTwice", false,
       [](Peer& peer, auto cid) {
         peer.respond(cid);
         peer.respond(cid);
       },
       "no outstanding command", Ending::wrong_id},
      {"SecondGreeting", false,
       [](Peer& peer, auto) { peer.send_bytes(nvme::wire_bytes(nvme::IcResp{.maxh2cdata = 4096})); },
       "out of sequence"},
      {"UnknownType", false,
       [](Peer& peer, auto) {
         send_common(peer, {.type = 0x42, .flags = 0, .hlen = 24, .pdo = 0, .plen = 24});
       },
       "invalid PDU header field"},
      {"PduOfTheHost", false,
       [](Peer& peer, auto) {
         send_common(peer, {.type = 0x04, .flags = 0, .hlen = 72, .pdo = 0, .plen = 72});
       },
       "invalid PDU header field"},
      {"HeaderLength", false,
       [](Peer& peer, auto) {
         send_common(peer, {.type = 0x05, .flags = 0, .hlen = 23, .pdo = 0, .plen = 24});
       },
       "invalid PDU header field", Ending::wrong_length},
      {"UnagreedDigest", false,
       [](Peer& peer, auto) {
         send_common(peer, {.type = 0x05, .flags = 1, .hlen = 24, .pdo = 0, .plen = 28});
       },
       "invalid PDU header field"},
      {"ShortPdu", false,
       [](Peer& peer, auto) {
         send_common(peer, {.type = 0x05, .flags = 0, .hlen = 24, .pdo = 0, .plen = 8});
       },
       "invalid PDU header field", Ending::wrong_length},
      {"OverlongResponse", false,
       [](Peer& peer, auto) {
         send_common(peer, {.type = 0x05, .flags = 0, .hlen = 24, .pdo = 24, .plen = 100});
       },
       "invalid PDU header field", Ending::wrong_length},
      {"Termination", false,
       [](Peer& peer, auto) {
         nvme::TermReq request;
         request.fes = static_cast<std::uint16_t>(nvme::FatalStatus::header_digest);
         peer.send_bytes(nvme::wire_bytes(request));
       },
       "ended the connection: header digest error", Ending::terminated},
      {"EndInTheMiddleOfData", false,
       [=](Peer& peer, auto cid) {
         const auto bytes = peer.encode(c2h(cid, 0, 4096), part(4096));
         peer.send_bytes(std::span(bytes).first(1000));
       },
       "closed the connection", Ending::closed},
      {"EndInTheMiddleOfAHeader", false,
       [](Peer& peer, auto) { peer.send_bytes(std::array<std::byte, 3>{std::byte{5}}); },
       "closed the connection", Ending::closed},
  };
}

class Hostile : public ::testing::TestWithParam<Attack> {};

INSTANTIATE_TEST_SUITE_P(Targets, Hostile, ::testing::ValuesIn(attacks()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(Hostile, LosesItsConnectionAndTouchesNothingElse) {
  const Attack& attack = GetParam();
  ScriptedTarget target([&](Peer& peer) {
    peer.greet();
    const auto cid = peer.receive().as<nvme::CapsuleCmd>().sqe.cid;
    attack.run(peer, cid);
    peer.shutdown_sending();
    while (peer.ok())
      peer.skip();
  });
  Client client({.address = target.address()});
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(kBytes);
  const auto direction = attack.write ? Direction::to_target : Direction::from_target;
  ASSERT_TRUE(
      client.queue_pair->submit(command(attack.write ? kWrite : kRead, direction, buffer.vectors()), 1));
  client.queue_pair->flush();
  ASSERT_TRUE(client.wait_closed());
  EXPECT_TRUE(contains(*client.closed, attack.reason));
  EXPECT_EQ(client.ending, attack.ending);
  EXPECT_TRUE(buffer.guards_intact());
}

TEST(HostileDigest, AWrongHeaderDigestEndsTheConnectionWithATermination) {
  std::atomic<std::uint16_t> told{0};
  ScriptedTarget target([&](Peer& peer) {
    peer.greet();
    nvme::CapsuleResp response;
    response.cqe.cid = peer.receive().as<nvme::CapsuleCmd>().sqe.cid;
    auto bytes = peer.encode(response);
    bytes.back() ^= std::byte{1};
    peer.send_bytes(bytes);
    const auto answer = peer.receive();
    EXPECT_EQ(answer.header.type, nvme::PduType::h2c_term_req);
    told = answer.as<nvme::TermReq>().fes;
  });
  Client client({.address = target.address(), .header_digest = DigestPolicy::require});
  ASSERT_TRUE(client.connect());
  EXPECT_FALSE(client.call(command(0x18)));
  EXPECT_TRUE(contains(*client.closed, "header digest"));
  EXPECT_EQ(client.ending, Ending::wrong_digest);
  target.stop();
  EXPECT_EQ(told, static_cast<std::uint16_t>(nvme::FatalStatus::header_digest));
}

// How a target sends data under a wrong digest, and then under a right one.
struct Damage {
  const char* name;
  std::function<void(Peer&, std::uint16_t cid, std::span<const std::byte> value)> run;
  nvme::Status status{nvme::kTransientTransportError};
};

void send_damaged(Peer& peer, std::uint16_t cid, std::span<const std::byte> value, unsigned flags) {
  auto pdu = c2h(cid, 0, static_cast<std::uint32_t>(value.size()));
  pdu.common.flags = static_cast<std::uint8_t>(flags);
  auto bytes = peer.encode(pdu, value);
  bytes[500] ^= std::byte{0x10};
  peer.send_bytes(bytes);
}

std::vector<Damage> damages() {
  return {{"BeforeTheResponse",
           [](Peer& peer, auto cid, auto value) {
             send_damaged(peer, cid, value, nvme::kPduLast);
             peer.respond(cid);
           }},
          {"WithTheSuccessFlag",
           [](Peer& peer, auto cid, auto value) {
             send_damaged(peer, cid, value, nvme::kPduLast | nvme::kPduDataSuccess);
           }},
          {"OfTheFirstOfTwo",
           [](Peer& peer, auto cid, auto value) {
             send_damaged(peer, cid, value.first(1000), 0);
             peer.send_data(cid, 1000, value.subspan(1000), nvme::kPduLast);
             peer.respond(cid);
           }},
          {"BeforeAnError",
           [](Peer& peer, auto cid, auto value) {
             send_damaged(peer, cid, value, nvme::kPduLast);
             peer.respond(cid, nvme::kInternalError);
           },
           nvme::kInternalError}};
}

class HostileDataDigest : public ::testing::TestWithParam<Damage> {};

INSTANTIATE_TEST_SUITE_P(Targets, HostileDataDigest, ::testing::ValuesIn(damages()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(HostileDataDigest, FailsItsCommandAndNotTheNextOne) {
  const auto value = pattern(kBytes, 9);
  ScriptedTarget target([&](Peer& peer) {
    peer.greet();
    GetParam().run(peer, peer.receive().as<nvme::CapsuleCmd>().sqe.cid, value);
    const auto cid = peer.receive().as<nvme::CapsuleCmd>().sqe.cid;
    peer.send_data(cid, 0, value, nvme::kPduLast);
    peer.respond(cid);
    while (peer.ok())
      peer.skip();
  });
  Client client({.address = target.address(), .data_digest = DigestPolicy::require});
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(kBytes);
  const auto damaged = client.call(command(kRead, Direction::from_target, buffer.vectors()), 1);
  ASSERT_TRUE(damaged) << client.closed.value_or("");
  EXPECT_TRUE(damaged->wrong_digest);
  EXPECT_EQ(damaged->cqe.status(), GetParam().status);
  const auto whole = client.call(command(kRead, Direction::from_target, buffer.vectors()), 2);
  ASSERT_TRUE(whole) << client.closed.value_or("");
  EXPECT_FALSE(whole->wrong_digest);
  EXPECT_EQ(whole->cqe.status(), nvme::kSuccess);
  EXPECT_TRUE(std::ranges::equal(buffer.bytes(), value));
  EXPECT_TRUE(buffer.guards_intact());
  EXPECT_FALSE(client.closed);
  client.queue_pair->close("done");
}

// Half valid, half random PDUs over a real socket; the same seeds each run.
class RandomTarget : public ::testing::TestWithParam<unsigned> {};

INSTANTIATE_TEST_SUITE_P(Seeds, RandomTarget, ::testing::Range(0U, 24U));

void send_noise(Peer& peer, std::mt19937& random, std::uint16_t cid) {
  const auto data = pattern(random() % 5000 + 1, random());
  const auto any_cid = static_cast<std::uint16_t>(random() % 4 == 0 ? random() : cid);
  std::vector<std::byte> bytes;
  switch (random() % 4) {
    case 0:
      bytes = peer.encode(c2h(any_cid, 0, static_cast<std::uint32_t>(data.size())), data);
      break;
    case 1:
      bytes = peer.encode(nvme::R2t{
          .cccid = any_cid, .ttag = 1, .r2to = 0, .r2tl = static_cast<std::uint32_t>(random() % 70000)});
      break;
    case 2:
      bytes = peer.encode(nvme::CapsuleResp{.cqe = {.cid = any_cid}});
      break;
    default:
      bytes = data;
  }
  for (auto flips = random() % 3; flips > 0; --flips)
    bytes[random() % bytes.size()] ^= static_cast<std::byte>(random());
  peer.send_bytes(bytes);
}

TEST_P(RandomTarget, NeverWritesOutsideTheBuffer) {
  std::mt19937 random(GetParam());
  ScriptedTarget target([&](Peer& peer) {
    peer.greet();
    const auto cid = peer.receive().as<nvme::CapsuleCmd>().sqe.cid;
    for (int i = 0; i < 20 && peer.ok(); ++i)
      send_noise(peer, random, cid);
    peer.shutdown_sending();
    while (peer.ok())
      peer.skip();
  });
  Client client({.address = target.address()});
  ASSERT_TRUE(client.connect());
  GuardedBuffer reads(kBytes);
  GuardedBuffer writes(kBytes);
  const bool read_first = GetParam() % 2 == 0;
  const auto first = read_first ? command(kRead, Direction::from_target, reads.vectors())
                                : command(kWrite, Direction::to_target, writes.vectors());
  ASSERT_TRUE(client.queue_pair->submit(first, 1));
  client.queue_pair->flush();
  EXPECT_TRUE(client.wait_closed());
  EXPECT_TRUE(reads.guards_intact());
  EXPECT_TRUE(writes.guards_intact());
}

}  // namespace
}  // namespace akv::fabric::test
