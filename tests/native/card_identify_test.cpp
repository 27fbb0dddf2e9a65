// What a subsystem is asked about itself, against targets that answer, refuse, hang and lie.
#include "card/identify.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "card_target.hpp"

namespace akv::card::test {
namespace {

constexpr std::chrono::milliseconds kDeadline{10000};

IdentifyTarget target_of(const CardTarget& target) {
  const CardPath path = target.path();
  return {.address = fabric::TcpAddress(path.traddr, path.trsvcid),
          .subsystem_nqn = "nqn.2024-01.io.akv:test",
          .host_nqn = "nqn.host",
          .host_id = {}};
}

TEST(Identify, TellsSerialAndNamespaces) {
  CardTarget target({.serial = "REAL0"});
  const SubsystemFacts facts = identify_subsystem(target_of(target), kDeadline);
  EXPECT_EQ(facts.serial, "REAL0");
  EXPECT_FALSE(facts.many_controllers);
  ASSERT_EQ(facts.namespaces.size(), 1U);
  EXPECT_EQ(facts.namespaces[0].nsid, 3U);
  EXPECT_EQ(facts.namespaces[0].identifiers.csi, nvme::kCsiKeyValue);
  EXPECT_EQ(facts.namespaces[0].identifiers.uuid, parse_uuid(kUuid));
}

TEST(Identify, AControllerOfBlocksOnlyHasAnIdentityToo) {
  CardTarget target({.kv_namespace = false, .io_command_sets = false});
  const SubsystemFacts facts = identify_subsystem(target_of(target), kDeadline);
  EXPECT_EQ(facts.serial, "CARD0");
  EXPECT_TRUE(facts.namespaces.empty());
}

TEST(Identify, BytesThatAreNoTextDontReachTheTerminal) {
  CardTarget target({.serial = "A\x1b[2J\xff"});
  EXPECT_EQ(identify_subsystem(target_of(target), kDeadline).serial, "A?[2J?");
}

TEST(Identify, ARefusedConnectIsToldApartFromSilence) {
  CardTarget target({.refused_from_queue = 0});
  EXPECT_THROW(static_cast<void>(identify_subsystem(target_of(target), kDeadline)), Refused);
}

TEST(Identify, ATargetThatIsNeverReadyCostsTheDeadline) {
  CardTarget target({.ready_polls = 1000000});
  EXPECT_THROW(static_cast<void>(identify_subsystem(target_of(target), std::chrono::milliseconds(200))),
               Unreachable);
}

TEST(Identify, NobodyAtTheAddress) {
  IdentifyTarget target{.address = fabric::TcpAddress("127.0.0.1", "1"),
                        .subsystem_nqn = "nqn.x",
                        .host_nqn = "nqn.host",
                        .host_id = {}};
  EXPECT_THROW(static_cast<void>(identify_subsystem(target, kDeadline)), Unreachable);
}

fabric::Response respond(nvme::Status status, std::uint64_t result = 0, std::uint32_t received = 0) {
  nvme::Cqe cqe;
  cqe.set_status(status);
  cqe.set_result64(result);
  return {.cqe = cqe, .received = received};
}

class IdentifyWalkTest : public ::testing::Test {
 protected:
  // Up to Identify Controller.
  void bring_up() {
    const std::uint64_t cap = nvme::make_cap(127, 10, nvme::Cap::kCssIoCommandSets).raw;
    for (const std::uint64_t result : {std::uint64_t{1}, cap, std::uint64_t{0}, std::uint64_t{1}}) {
      static_cast<void>(walk.command());
      ASSERT_EQ(walk.on_response(respond(nvme::kSuccess, result)), IdentifyWalk::Next::send);
    }
  }
  template <nvme::WireStruct T>
  IdentifyWalk::Next give(const T& structure) {
    const auto command = walk.command();
    std::memcpy(command.data[0].iov_base, &structure, sizeof structure);
    return walk.on_response(respond(nvme::kSuccess, 0, sizeof structure));
  }

  IdentifyWalk walk{{.address = fabric::TcpAddress("127.0.0.1", "4420"),
                     .subsystem_nqn = "nqn.card",
                     .host_nqn = "nqn.host",
                     .host_id = {}}};
};

TEST_F(IdentifyWalkTest, AListFullOfNamespacesIsCut) {
  bring_up();
  ASSERT_EQ(give(nvme::IdentifyController{}), IdentifyWalk::Next::send);
  nvme::NamespaceList list;
  std::ranges::fill(list.nsid, 7U);
  ASSERT_EQ(give(list), IdentifyWalk::Next::send);
  EXPECT_EQ(walk.facts().namespaces.size(), 32U);
  for (int i = 0; i < 31; ++i)
    ASSERT_EQ(walk.on_response(respond(nvme::kInvalidNamespace)), IdentifyWalk::Next::send);
  EXPECT_EQ(walk.on_response(respond(nvme::kInvalidNamespace)), IdentifyWalk::Next::done);
}

TEST_F(IdentifyWalkTest, ShortDataIsNotRead) {
  bring_up();
  static_cast<void>(walk.command());
  EXPECT_EQ(walk.on_response(respond(nvme::kSuccess, 0, 100)), IdentifyWalk::Next::failed);
  EXPECT_NE(walk.reason().find("100 bytes"), std::string::npos);
}

TEST_F(IdentifyWalkTest, AFatalControllerAndDemandedAuthenticationAreNamed) {
  EXPECT_EQ(walk.on_response(respond(nvme::kSuccess, 0x00030001)), IdentifyWalk::Next::failed);
  EXPECT_NE(walk.reason().find("authentication"), std::string::npos);
}

}  // namespace
}  // namespace akv::card::test
