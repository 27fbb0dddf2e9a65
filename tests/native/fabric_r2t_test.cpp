// R2T (NVMe TCP Transport 1.0, 3.6.2.10) and MAXR2T of the ICReq (3.6.2.2): how a write's data is asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <vector>

#include "fabric_client.hpp"
#include "fabric_support.hpp"

namespace akv::fabric::test {
namespace {

constexpr std::uint32_t kValueBytes = 70'001;

struct Asked {
  std::uint16_t ttag;
  std::uint32_t offset;
  std::uint32_t bytes;
};

// One segment, so that all of them are there before any is answered.
void ask(Peer& peer, std::uint16_t cid, const std::vector<Asked>& r2ts) {
  std::vector<std::byte> bytes;
  for (const Asked& asked : r2ts) {
    const auto one =
        peer.encode(nvme::R2t{.cccid = cid, .ttag = asked.ttag, .r2to = asked.offset, .r2tl = asked.bytes});
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  peer.send_bytes(bytes);
}

// The data that one R2T asked for: in order, under its tag, LAST at its end and nowhere else.
void take(Peer& peer, std::uint16_t cid, const Asked& asked, std::vector<std::byte>& got) {
  const std::size_t end = asked.offset + asked.bytes;
  while (got.size() < end && peer.ok()) {
    const auto pdu = peer.receive();
    const auto data = pdu.as<nvme::DataPdu>();
    EXPECT_EQ(pdu.header.type, nvme::PduType::h2c_data);
    EXPECT_EQ(data.cccid, cid);
    EXPECT_EQ(data.ttag, asked.ttag);
    EXPECT_EQ(data.datao, got.size());
    got.insert(got.end(), pdu.data.begin(), pdu.data.end());
    EXPECT_EQ(pdu.header.flag(nvme::kPduLast), got.size() == end);
  }
  EXPECT_EQ(got.size(), end);
}

class R2ts : public ::testing::TestWithParam<DigestPolicy> {};

INSTANTIATE_TEST_SUITE_P(Digests, R2ts, ::testing::Values(DigestPolicy::off, DigestPolicy::require));

// As many as MAXR2T allows are open at a time; a further one comes as soon as the first has its data.
TEST_P(R2ts, SeveralOfOneCommandAreAnsweredInTheirOrder) {
  const auto value = pattern(kValueBytes, 1);
  ScriptedTarget target([&](Peer& peer) {
    EXPECT_EQ(peer.greet({.maxh2cdata = 8192}).maxr2t, Grants::kMost - 1);
    const auto cid = peer.receive().as<nvme::CapsuleCmd>().sqe.cid;
    const std::vector<Asked> first{{9, 0, 20'000}, {3, 20'000, 8192}, {5, 28'192, 1}, {4, 28'193, 10'000}};
    const Asked last{1, 38'193, kValueBytes - 38'193};
    std::vector<std::byte> got;
    ask(peer, cid, first);
    take(peer, cid, first[0], got);
    ask(peer, cid, {last});
    for (const Asked& asked : {first[1], first[2], first[3], last})
      take(peer, cid, asked, got);
    EXPECT_EQ(got, value);
    peer.respond(cid);
  });
  Client client({.address = target.address(), .header_digest = GetParam(), .data_digest = GetParam()});
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(kValueBytes);
  std::ranges::copy(value, buffer.bytes().begin());
  const auto response = client.call(command(kWrite, Direction::to_target, buffer.vectors()));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->cqe.status(), nvme::kSuccess);
}

TEST(R2tsOfManyCommands, AreAnsweredEachUnderItsOwnTag) {
  ScriptedTarget target([&](Peer& peer) {
    peer.greet({.maxh2cdata = 4096});
    std::vector<std::uint16_t> cids;
    for (int i = 0; i < 3; ++i)
      cids.push_back(peer.receive().as<nvme::CapsuleCmd>().sqe.cid);
    for (std::uint16_t i = 0; i < cids.size(); ++i)
      ask(peer, cids[i],
          {{i, 0, 10'000}, {static_cast<std::uint16_t>(i + 10), 10'000, kValueBytes - 10'000}});
    std::map<std::uint16_t, std::vector<std::byte>> got;
    for (std::size_t all = 0; all < cids.size() * kValueBytes && peer.ok();) {
      const auto pdu = peer.receive();
      const auto data = pdu.as<nvme::DataPdu>();
      auto& mine = got[data.cccid];
      EXPECT_EQ(data.datao, mine.size());
      const auto number = static_cast<std::size_t>(std::ranges::find(cids, data.cccid) - cids.begin());
      EXPECT_EQ(data.ttag, mine.size() < 10'000 ? number : number + 10);
      mine.insert(mine.end(), pdu.data.begin(), pdu.data.end());
      all += pdu.data.size();
    }
    for (std::size_t i = 0; i < cids.size(); ++i) {
      EXPECT_EQ(got[cids[i]], pattern(kValueBytes, i));
      peer.respond(cids[i]);
    }
  });
  Client client({.address = target.address()});
  ASSERT_TRUE(client.connect());
  std::vector<GuardedBuffer> buffers;
  buffers.reserve(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    std::ranges::copy(pattern(kValueBytes, i), buffers.emplace_back(kValueBytes).bytes().begin());
    ASSERT_TRUE(
        client.queue_pair->submit(command(kWrite, Direction::to_target, buffers.back().vectors()), i));
  }
  client.queue_pair->flush();
  EXPECT_TRUE(client.run_until([&] { return client.responses.size() == 3; }));
}

// Fatal error "R2T limit exceeded" (3.6.2.4).
class TooManyR2ts : public ::testing::TestWithParam<std::uint32_t> {};

INSTANTIATE_TEST_SUITE_P(Allowed, TooManyR2ts, ::testing::Values(1U, 2U, Grants::kMost));

TEST_P(TooManyR2ts, AtOnceAreABreachOfTheProtocol) {
  std::atomic<std::uint16_t> told{0};
  ScriptedTarget target([&](Peer& peer) {
    EXPECT_EQ(peer.greet().maxr2t, GetParam() - 1);
    const auto cid = peer.receive().as<nvme::CapsuleCmd>().sqe.cid;
    std::vector<Asked> r2ts;
    for (std::uint16_t i = 0; i <= GetParam(); ++i)
      r2ts.push_back({i, i * 1000U, 1000});
    ask(peer, cid, r2ts);
    told = peer.receive().as<nvme::TermReq>().fes;
  });
  Client client({.address = target.address(), .max_r2ts = GetParam()});
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(kValueBytes);
  EXPECT_FALSE(client.call(command(kWrite, Direction::to_target, buffer.vectors())));
  ASSERT_TRUE(client.closed);
  EXPECT_TRUE(contains(*client.closed, "more R2Ts at once"));
  EXPECT_EQ(client.ending, Ending::protocol);
  target.stop();
  EXPECT_EQ(told, static_cast<std::uint16_t>(nvme::FatalStatus::data_limit_exceeded));
}

// The target gives up on a write whose R2Ts are open: no more of its data is sent, and the queue serves on.
TEST(R2tsOfACommand, ThatIsOverAreForgotten) {
  ScriptedTarget target([](Peer& peer) {
    peer.greet();
    for (int turn = 0; turn < 3; ++turn) {
      const auto cid = peer.receive().as<nvme::CapsuleCmd>().sqe.cid;
      nvme::CapsuleResp response;
      response.cqe.cid = cid;
      response.cqe.set_status(nvme::kInternalError);
      std::vector<std::byte> bytes;
      for (std::uint16_t i = 0; i < 3; ++i) {
        const auto one = peer.encode(nvme::R2t{.cccid = cid, .ttag = i, .r2to = i * 100U, .r2tl = 100});
        bytes.insert(bytes.end(), one.begin(), one.end());
      }
      const auto end = peer.encode(response);
      bytes.insert(bytes.end(), end.begin(), end.end());
      peer.send_bytes(bytes);
    }
    const auto cid = peer.receive().as<nvme::CapsuleCmd>().sqe.cid;
    ask(peer, cid, {{7, 0, kValueBytes}});
    std::vector<std::byte> got;
    take(peer, cid, {7, 0, kValueBytes}, got);
    peer.respond(cid);
  });
  Client client({.address = target.address(), .depth = 1});
  ASSERT_TRUE(client.connect());
  GuardedBuffer buffer(kValueBytes);
  for (std::uint32_t tag = 0; tag < 4; ++tag) {
    const auto response = client.call(command(kWrite, Direction::to_target, buffer.vectors()), tag);
    ASSERT_TRUE(response);
    EXPECT_EQ(response->cqe.status(), tag < 3 ? nvme::kInternalError : nvme::kSuccess);
  }
}

}  // namespace
}  // namespace akv::fabric::test
