// What the admin queue does while a card is in service: its status, its events, Abort.
#include <gtest/gtest.h>

#include "card_nvme_support.hpp"
#include "card_target.hpp"

namespace akv::card::test {
namespace {

using nvme::AdminOpcode;
using std::chrono::milliseconds;

constexpr std::uint32_t kNamespaceChanged = 0x00040002;     // log page 4, notice
constexpr std::uint32_t kSpareBelowThreshold = 0x00020201;  // log page 2, SMART

auto back_in_service(std::string reason) {
  return [reason = std::move(reason)](const CardSnapshot& card) {
    return card.state == CardState::live && card.reconnects > 0 &&
           card.last_error.find(reason) != std::string::npos;
  };
}

NvmeCardConfig short_ticks() {
  auto config = quick_config();
  config.keep_alive = milliseconds(4000);
  return config;
}

struct CardAdmin : ::testing::Test {
  explicit CardAdmin(Behaviour behaviour = {}, NvmeCardConfig config = short_ticks())
      : target(std::move(behaviour)), cards(std::move(config), 1) {
    cards.set->apply({target.spec()});
    EXPECT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  }
  void heal_once_it_left(Trouble trouble, const std::string& reason) {
    EXPECT_TRUE(reaches(*cards.set, "CARD0", [&](const CardSnapshot& card) {
      return card.trouble == trouble && card.last_error.find(reason) != std::string::npos;
    }));
    target.change([](Behaviour& now) {
      now.csts = nvme::Csts::kReady;
      now.event = 0;
    });
    EXPECT_TRUE(reaches(*cards.set, "CARD0", back_in_service(reason)));
  }

  CardTarget target;
  NvmeCards cards;
};

TEST_F(CardAdmin, AControllerThatTurnsFatalIsLeft) {
  target.change([](Behaviour& now) { now.csts = nvme::Csts::kReady | nvme::Csts::kFatal; });
  heal_once_it_left(Trouble::controller_fatal, "fatal status (CSTS.CFS)");
}

TEST_F(CardAdmin, AControllerThatIsNotReadyAnyMoreIsLeft) {
  target.change([](Behaviour& now) { now.csts = 0; });
  heal_once_it_left(Trouble::controller_fatal, "not ready any more");
}

struct CardEvents : CardAdmin {
  CardEvents() : CardAdmin({.oaes = nvme::kOaesNamespaceAttribute | 0x200}) {}
};

TEST_F(CardEvents, AreAskedForAsFarAsTheyAreOfferedAndUsed) {
  EXPECT_EQ(target.feature(nvme::Feature::async_event_configuration), nvme::kOaesNamespaceAttribute);
}

TEST_F(CardEvents, ChangedNamespacesAreIdentifiedAnew) {
  target.change([](Behaviour& now) { now.event = kNamespaceChanged; });
  heal_once_it_left(Trouble::namespaces_changed, "namespaces changed");
}

TEST_F(CardEvents, OtherEventsAreReadAndAskedForAgain) {
  target.change([](Behaviour& now) { now.event = kSpareBelowThreshold; });
  EXPECT_TRUE(reaches(*cards.set, "CARD0", [&](const CardSnapshot&) {
    return target.count(AdminOpcode::get_log_page) >= 2 &&
           target.count(AdminOpcode::async_event_request) >= 2;
  }));
  EXPECT_EQ(cards.snapshot().state, CardState::live);
  EXPECT_EQ(cards.snapshot().reconnects, 0U);
}

struct CardAbort : CardAdmin {
  CardAbort() : CardAdmin({.acl = 0}, quick_timeout()) {
    Request store(IoOp::store, key(1), pattern(5000, 1));
    EXPECT_EQ(cards.run(store).status, IoStatus::ok);
    target.change([](Behaviour& now) { now.silent_io = true; });
  }
  static NvmeCardConfig quick_timeout() {
    auto config = quick_config();
    config.io_timeout = milliseconds(300);
    config.io_timeout_strikes = 30;
    return config;
  }
};

TEST_F(CardAbort, GivesTheBuffersOfALateCommandBack) {
  Request late(IoOp::retrieve, key(1), std::vector<std::byte>(5000));
  ASSERT_TRUE(cards.submit(late));
  EXPECT_EQ(late.wait().status, IoStatus::timeout);
  EXPECT_EQ(target.count(AdminOpcode::abort), 1U);
  EXPECT_EQ(cards.snapshot().inflight, 0U);
  EXPECT_EQ(cards.snapshot().reconnects, 0U);
}

TEST_F(CardAbort, NoMoreAreOutstandingThanTheControllerTakes) {
  target.change([](Behaviour& now) { now.silent_aborts = true; });
  std::vector<std::unique_ptr<Request>> late;
  for (int i = 0; i < 4; ++i) {
    late.push_back(std::make_unique<Request>(IoOp::exist, key(1)));
    ASSERT_TRUE(cards.submit(*late.back()));
  }
  for (const auto& request : late)
    EXPECT_EQ(request->wait_completed().status, IoStatus::timeout);
  EXPECT_TRUE(reaches(*cards.set, "CARD0",
                      [&](const CardSnapshot&) { return target.count(AdminOpcode::abort) >= 1; }));
  target.change([](Behaviour& now) { now.silent_io = false; });
  for (const auto& request : late)
    EXPECT_EQ(request->wait().status, IoStatus::timeout);
  EXPECT_EQ(target.count(AdminOpcode::abort), 1U);
}

}  // namespace
}  // namespace akv::card::test
