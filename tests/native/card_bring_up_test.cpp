// What is asked of a controller and how its answers are judged, without a socket.
#include "card/bring_up.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "card/uuid.hpp"
#include "nvme/registers.hpp"
#include "nvme/status.hpp"

namespace akv::card {
namespace {

using Next = BringUp::Next;

constexpr const char* kUuid = "11112222-3333-4444-5555-666677778888";

// A controller's answers, in the order in which they are asked for.
struct Script {
  nvme::Cap cap{nvme::make_cap(127, 10, nvme::Cap::kCssIoCommandSets)};
  nvme::IdentifyController controller;
  nvme::NamespaceList namespaces;
  std::array<std::byte, nvme::kIdentifyBytes> descriptors{};
  nvme::IdentifyKvNamespace kv;
  std::uint32_t queues{0x00030003};  // four, 0's based

  Script() {
    nvme::set_padded(controller.sn, "CARD0");
    controller.ioccsz = (64 + 8192) / 16;
    namespaces.nsid[0] = 5;
    describe(nvme::kCsiKeyValue);
    kv.formats[0] = {.key_max_bytes = 16, .value_max_bytes = 1U << 20U};
  }
  void describe(std::uint8_t csi) {
    const std::uint8_t list[] = {4, 1, 0, 0, csi, 3, 16, 0, 0};
    std::memcpy(descriptors.data(), list, sizeof list);
    std::memcpy(descriptors.data() + sizeof list, parse_uuid(kUuid)->data(), 16);
  }
};

class BringUpTest : public ::testing::Test {
 protected:
  Next walk() {
    Next next = Next::send;
    while (next == Next::send)
      next = bring_up().on_response(answer(bring_up().command()));
    return next;
  }
  BringUp& bring_up() {
    if (!made_) made_ = std::make_unique<BringUp>(identity, 5000, 128, 4);
    return *made_;
  }
  [[nodiscard]] static fabric::Response respond(nvme::Status status, std::uint64_t result = 0,
                                                std::uint32_t received = 0) {
    nvme::Cqe cqe;
    cqe.set_status(status);
    cqe.set_result64(result);
    return {.cqe = cqe, .received = received};
  }

  fabric::Response answer(const fabric::Command& command);

  Identity identity{.host_nqn = "nqn.host",
                    .host_id = {},
                    .subsystem_nqn = "nqn.card",
                    .serial = "CARD0",
                    .namespace_uuid = std::nullopt};
  Script script;

 private:
  template <nvme::WireStruct T>
  static fabric::Response give(const fabric::Command& command, const T& structure) {
    std::memcpy(command.data[0].iov_base, &structure, sizeof structure);
    return respond(nvme::kSuccess, 0, sizeof structure);
  }

  std::unique_ptr<BringUp> made_;
};

fabric::Response BringUpTest::answer(const fabric::Command& command) {
  const nvme::Sqe& sqe = command.sqe;
  if (sqe.opcode == nvme::kFabricsOpcode) {
    if (sqe.nsid != static_cast<std::uint32_t>(nvme::FabricsType::property_get))
      return respond(nvme::kSuccess, 7);
    return respond(nvme::kSuccess,
                   nvme::parse_property(sqe).eight_bytes ? script.cap.raw : nvme::Csts::kReady);
  }
  if (sqe.opcode == static_cast<std::uint8_t>(nvme::AdminOpcode::set_features)) {
    return respond(nvme::kSuccess, script.queues);
  }
  switch (static_cast<nvme::Cns>(sqe.cdw10)) {
    case nvme::Cns::controller:
      return give(command, script.controller);
    case nvme::Cns::active_namespaces_command_set:
      return give(command, script.namespaces);
    case nvme::Cns::namespace_descriptors:
      if (sqe.nsid == 4) return respond(nvme::kInvalidNamespace);
      return give(command, script.descriptors);
    default:
      return give(command, script.kv);
  }
}

TEST_F(BringUpTest, EndsWithTheControllersFacts) {
  ASSERT_EQ(walk(), Next::done);
  const ControllerFacts& facts = bring_up().facts();
  EXPECT_EQ(facts.cntlid, 7);
  EXPECT_EQ(facts.nsid, 5U);
  EXPECT_EQ(facts.max_value_bytes, 1U << 20U);
  EXPECT_EQ(facts.in_capsule_bytes, 8192U);
  EXPECT_EQ(facts.queue_depth, 127U);
  EXPECT_EQ(facts.queues, 4);
}

// At any of its commands with data: no client can write that memory, so it is not tried without.
TEST_F(BringUpTest, AWrongDataDigestOfAnyAnswerEndsIt) {
  const auto ends_at = [this](int which) {
    BringUp walk(identity, 5000, 128, 4);
    Next next = Next::send;
    for (int seen = 0; next == Next::send;) {
      const fabric::Command command = walk.command();
      fabric::Response response = answer(command);
      const bool damaged = command.direction == fabric::Direction::from_target && seen++ == which;
      if (damaged) {
        response.wrong_digest = true;
        response.cqe.set_status(nvme::kTransientTransportError);
      }
      next = walk.on_response(response);
    }
    return std::pair(next, walk.failure());
  };
  for (int which = 0; which < 4; ++which)
    EXPECT_EQ(ends_at(which), std::pair(Next::failed, Trouble::wrong_digest)) << which;
  EXPECT_EQ(ends_at(4).first, Next::done);
}

TEST_F(BringUpTest, ConnectNamesHostAndSubsystemInTheCapsule) {
  const fabric::Command command = bring_up().command();
  EXPECT_TRUE(command.must_be_in_capsule);
  ASSERT_EQ(command.data[0].iov_len, sizeof(nvme::ConnectData));
  nvme::ConnectData data;
  std::memcpy(&data, command.data[0].iov_base, sizeof data);
  EXPECT_EQ(nvme::get_nqn(data.subnqn), "nqn.card");
  EXPECT_EQ(nvme::get_nqn(data.hostnqn), "nqn.host");
  EXPECT_EQ(data.cntlid, nvme::kDynamicController);
  EXPECT_EQ(nvme::parse_connect(command.sqe).kato_ms, 5000U);
}

TEST_F(BringUpTest, TheSmallestLimitCounts) {
  script.controller.mdts = 4;
  script.controller.maxcmd = 16;
  script.queues = 0x00000001;  // two submission queues, one completion queue
  ASSERT_EQ(walk(), Next::done);
  EXPECT_EQ(bring_up().facts().max_value_bytes, 65536U);
  EXPECT_EQ(bring_up().facts().queue_depth, 16U);
  EXPECT_EQ(bring_up().facts().queues, 1);
}

TEST_F(BringUpTest, ExtremeFieldsStayWithinTheirTypes) {
  script.cap = nvme::make_cap(0, 0, nvme::Cap::kCssIoCommandSets | (std::uint64_t{0xF} << 48U));
  script.controller.mdts = 255;
  script.controller.ioccsz = 0xFFFFFFFF;
  script.kv.formats[0].value_max_bytes = 0xFFFFFFFF;
  script.queues = 0xFFFFFFFF;
  ASSERT_EQ(walk(), Next::done);
  EXPECT_EQ(bring_up().facts().max_value_bytes, 0xFFFFFFFFU);
  EXPECT_EQ(bring_up().facts().queue_depth, 1U);
  EXPECT_EQ(bring_up().facts().queues, 4);
}

TEST_F(BringUpTest, OnlyEventsThatAreOfferedAreAskedFor) {
  script.controller.oaes = nvme::kOaesNamespaceAttribute | 0x4800;
  script.controller.acl = 7;
  std::vector<std::uint32_t> features;
  Next next = Next::send;
  while (next == Next::send) {
    const auto command = bring_up().command();
    if (command.sqe.opcode == static_cast<std::uint8_t>(nvme::AdminOpcode::set_features)) {
      features.push_back(command.sqe.cdw10);
      if (features.size() == 2) {
        EXPECT_EQ(command.sqe.cdw11, nvme::kOaesNamespaceAttribute);
        next = bring_up().on_response(respond(nvme::kInvalidField));  // is no reason to leave the card
        continue;
      }
    }
    next = bring_up().on_response(answer(command));
  }
  EXPECT_EQ(next, Next::done);
  EXPECT_EQ(features, (std::vector<std::uint32_t>{0x07, 0x0B}));
  EXPECT_EQ(bring_up().facts().aborts, 8);
}

TEST_F(BringUpTest, InCapsuleDataAtAnOffsetIsNotUsed) {
  script.controller.icdoff = 1;
  ASSERT_EQ(walk(), Next::done);
  EXPECT_EQ(bring_up().facts().in_capsule_bytes, 0U);
}

TEST_F(BringUpTest, NamespacesAreTriedInTurn) {
  script.namespaces.nsid[0] = 4;  // refuses its descriptors
  script.namespaces.nsid[1] = 9;
  ASSERT_EQ(walk(), Next::done);
  EXPECT_EQ(bring_up().facts().nsid, 9U);
}

TEST_F(BringUpTest, ANamespaceListWithoutAnEndIsTriedOnlySoFar) {
  for (auto& nsid : script.namespaces.nsid)
    nsid = 4;
  EXPECT_EQ(walk(), Next::failed);
  EXPECT_EQ(bring_up().failure(), Trouble::no_kv_namespace);
}

TEST_F(BringUpTest, NamespacesThatCantHoldOurKeysAreNotTaken) {
  script.kv.formats[0].key_max_bytes = 8;
  EXPECT_EQ(walk(), Next::failed);
  EXPECT_EQ(bring_up().failure(), Trouble::no_kv_namespace);
}

TEST_F(BringUpTest, BlockNamespacesAreNotTaken) {
  script.describe(nvme::kCsiNvm);
  EXPECT_EQ(walk(), Next::failed);
  EXPECT_EQ(bring_up().failure(), Trouble::no_kv_namespace);
}

TEST_F(BringUpTest, DescriptorsThatRunOutOfTheirListAreIgnored) {
  script.descriptors.fill(std::byte{0xFF});
  EXPECT_EQ(walk(), Next::failed);
  EXPECT_EQ(bring_up().failure(), Trouble::no_kv_namespace);
}

TEST_F(BringUpTest, TheUuidMustBeTheRegisteredOne) {
  identity.namespace_uuid = parse_uuid(kUuid);
  EXPECT_EQ(walk(), Next::done);
}

TEST_F(BringUpTest, ControllersOfOtherKindsAreToldApart) {
  script.cap = nvme::make_cap(127, 10, nvme::Cap::kCssNvm);
  EXPECT_EQ(walk(), Next::failed);
  EXPECT_EQ(bring_up().failure(), Trouble::no_kv_namespace);
}

TEST_F(BringUpTest, AuthenticationThatIsDemandedIsNamed) {
  EXPECT_EQ(bring_up().on_response(respond(nvme::kSuccess, 0x00030001)), Next::failed);
  EXPECT_NE(bring_up().reason().find("authentication"), std::string::npos);
}

TEST_F(BringUpTest, ARefusedConnectNamesSubsystemAndStatus) {
  EXPECT_EQ(bring_up().on_response(respond(nvme::dnr(nvme::kConnectInvalidParameters))), Next::failed);
  EXPECT_NE(bring_up().reason().find("nqn.card"), std::string::npos);
  EXPECT_NE(bring_up().reason().find("sc 0x82"), std::string::npos);
}

TEST_F(BringUpTest, AControllerThatIsNotReadyIsAskedAgainAndAFatalOneIsLeft) {
  EXPECT_EQ(bring_up().on_response(respond(nvme::kSuccess, 1)), Next::send);
  EXPECT_EQ(bring_up().on_response(respond(nvme::kSuccess, script.cap.raw)), Next::send);
  EXPECT_EQ(bring_up().on_response(respond(nvme::kSuccess)), Next::send);
  EXPECT_EQ(bring_up().on_response(respond(nvme::kSuccess, 0)), Next::wait_and_send);
  EXPECT_EQ(bring_up().on_response(respond(nvme::kSuccess, nvme::Csts::kFatal)), Next::failed);
}

TEST_F(BringUpTest, ShortIdentifyDataIsNotRead) {
  while (bring_up().command().direction != fabric::Direction::from_target) {
    const auto sqe = bring_up().command().sqe;
    const bool cap = sqe.cdw10 == 1 && sqe.cdw11 == 0;
    const std::uint64_t result = cap ? script.cap.raw : 1;
    ASSERT_EQ(bring_up().on_response(respond(nvme::kSuccess, result)), Next::send);
  }
  EXPECT_EQ(bring_up().on_response(respond(nvme::kSuccess, 0, 100)), Next::failed);
  EXPECT_NE(bring_up().reason().find("100 bytes"), std::string::npos);
}

TEST_F(BringUpTest, AnotherSerialIsNamed) {
  nvme::set_padded(script.controller.sn, "OTHER");
  EXPECT_EQ(walk(), Next::failed);
  EXPECT_EQ(bring_up().failure(), Trouble::wrong_serial);
  EXPECT_NE(bring_up().reason().find("OTHER"), std::string::npos);
}

TEST(Uuid, TextAndBytesAgree) {
  EXPECT_EQ(format_uuid(*parse_uuid(kUuid)), kUuid);
  EXPECT_EQ(format_uuid(*parse_uuid("ABCDEFab-cdef-0123-4567-89abcdefABCD")),
            "abcdefab-cdef-0123-4567-89abcdefabcd");
  for (const char* bad : {"", "1111", "11112222-3333-4444-5555-66667777888",
                          "11112222-3333-4444-5555-66667777888g", "111122223-333-4444-5555-666677778888"}) {
    EXPECT_FALSE(parse_uuid(bad)) << bad;
  }
}

}  // namespace
}  // namespace akv::card
