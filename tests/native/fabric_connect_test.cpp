// Beginning and end of connections: deadlines, handshakes, leaks.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "fabric_client.hpp"
#include "fabric_support.hpp"

namespace akv::fabric::test {
namespace {

using std::chrono::milliseconds;

std::size_t open_descriptors() {
  DIR* const directory = ::opendir("/proc/self/fd");
  std::size_t count = 0;
  while (::readdir(directory) != nullptr)
    ++count;
  ::closedir(directory);
  return count;
}

TEST(Address, TakesLiteralsOfBothFamiliesAndNothingElse) {
  EXPECT_EQ(TcpAddress("127.0.0.11", "4420").text(), "tcp://127.0.0.11:4420");
  EXPECT_EQ(TcpAddress("fd00::1", "1").text(), "tcp://[fd00::1]:1");
  for (const char* bad : {"", "localhost", "127.0.0.256", "[::1]"})
    EXPECT_THROW(TcpAddress(bad, "1"), std::invalid_argument);
  for (const char* bad : {"", "0", "65536", "44x", "-1"})
    EXPECT_THROW(TcpAddress("::1", bad), std::invalid_argument);
}

TEST(Connect, ARefusedConnectionIsToldWithTheAddress) {
  std::optional<TcpAddress> gone;
  {
    ScriptedTarget target([](Peer&) {});
    gone = target.address();
  }
  Client client({.address = *gone});
  EXPECT_FALSE(client.connect());
  EXPECT_TRUE(contains(*client.closed, gone->text()));
  EXPECT_EQ(client.ending, Ending::unreachable);
}

TEST(Connect, ATargetThatNeverGreetsMeetsTheDeadline) {
  ScriptedTarget target([](Peer& peer) {
    peer.receive();
    std::byte end{};
    peer.read_bytes(std::span(&end, 1));
  });
  Client client({.address = target.address(), .connect_timeout = milliseconds(80)});
  const TimePoint before = monotonic_now();
  EXPECT_FALSE(client.connect());
  EXPECT_GE(monotonic_now() - before, milliseconds(80));
  EXPECT_TRUE(contains(*client.closed, "did not answer within 80 ms"));
  EXPECT_EQ(client.ending, Ending::unanswered);
}

struct BadGreeting {
  const char* name;
  nvme::IcResp response;
  bool agree;
  const char* expected;
};

class Greeting : public ::testing::TestWithParam<BadGreeting> {};

INSTANTIATE_TEST_SUITE_P(
    Bad, Greeting,
    ::testing::Values(BadGreeting{"pfv", {.pfv = 1, .maxh2cdata = 4096}, true, "PFV 1"},
                      BadGreeting{"cpda", {.cpda = 32, .maxh2cdata = 4096}, true, "CPDA 32"},
                      BadGreeting{"small", {.maxh2cdata = 4092}, true, "MAXH2CDATA 4092"},
                      BadGreeting{"odd", {.maxh2cdata = 4098}, true, "MAXH2CDATA 4098"},
                      BadGreeting{"digest", {.dgst = 2, .maxh2cdata = 4096}, false, "not asked for"},
                      BadGreeting{"required", {.maxh2cdata = 4096}, false, "a digest that is required"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST_P(Greeting, IsRefusedWithAReason) {
  ScriptedTarget target([&](Peer& peer) { peer.greet(GetParam().response, GetParam().agree); });
  Client client({.address = target.address(), .header_digest = DigestPolicy::require});
  EXPECT_FALSE(client.connect());
  EXPECT_TRUE(contains(*client.closed, GetParam().expected));
}

TEST(Connect, ATargetThatDemandsOtherDigestsIsToldFromOthers) {
  ScriptedTarget target([](Peer& peer) {
    nvme::TermReq request;
    request.fes = static_cast<std::uint16_t>(nvme::FatalStatus::unsupported_parameter);
    request.fei_low = offsetof(nvme::IcReq, dgst);
    peer.send_bytes(nvme::wire_bytes(request));
  });
  Client client({.address = target.address()});
  EXPECT_FALSE(client.connect());
  EXPECT_TRUE(
      contains(*client.closed, "unsupported parameter; it takes no host with the header and data digests"));
}

TEST(Connect, PreferredDigestsAreLeftOffWhereTheTargetDeclines) {
  ScriptedTarget target([](Peer& peer) {
    const auto request = peer.greet({.maxh2cdata = 4096}, false);
    EXPECT_EQ(request.dgst, nvme::kDigestHeader | nvme::kDigestData);
    peer.respond(peer.receive().as<nvme::CapsuleCmd>().sqe.cid);
  });
  Client client({.address = target.address(),
                 .header_digest = DigestPolicy::prefer,
                 .data_digest = DigestPolicy::prefer});
  ASSERT_TRUE(client.connect());
  EXPECT_TRUE(client.call(command(0x18)));
}

TEST(Connect, CloseEndsWithEveryCommandForgotten) {
  ScriptedTarget target([](Peer& peer) {
    peer.greet();
    while (peer.ok())
      peer.receive();
  });
  Client client({.address = target.address()});
  ASSERT_TRUE(client.connect());
  ASSERT_TRUE(client.queue_pair->submit(command(0x14), 1));
  client.queue_pair->flush();
  client.queue_pair->close("enough");
  EXPECT_EQ(*client.closed, "enough");
  EXPECT_FALSE(client.queue_pair->submit(command(0x14), 2));
  client.queue_pair->flush();
  EXPECT_TRUE(client.responses.empty());
}

TEST(Connect, AThousandConnectionsLeaveNoDescriptorBehind) {
  ScriptedTarget target([](Peer& peer) {
    peer.greet();
    peer.respond(peer.receive().as<nvme::CapsuleCmd>().sqe.cid);
  });
  const auto connect_once = [&] {
    Client client({.address = target.address()});
    ASSERT_TRUE(client.connect());
    ASSERT_TRUE(client.call(command(0x18)));
  };
  connect_once();
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 1000 && !::testing::Test::HasFatalFailure(); ++i)
    connect_once();
  // The target's own ends close on their threads, a little later.
  const Deadline deadline(monotonic_now(), std::chrono::seconds(10));
  while (open_descriptors() > before && !deadline.passed(monotonic_now()))
    std::this_thread::yield();
  EXPECT_LE(open_descriptors(), before);
}

}  // namespace
}  // namespace akv::fabric::test
