// Cards that come, go, change and turn out to be other cards.
#include <gtest/gtest.h>

#include <set>

#include "base/events.hpp"
#include "card/trouble.hpp"
#include "card_nvme_support.hpp"
#include "card_target.hpp"
#include "fabric_client.hpp"

namespace akv::card::test {
namespace {

using fabric::test::contains;
using std::chrono::milliseconds;

// Out of service for that, and with `part` in its words.
auto because(Trouble trouble, std::string part) {
  return [trouble, part = std::move(part)](const CardSnapshot& card) {
    return card.state == state_after(trouble) && card.trouble == trouble &&
           card.last_error.find(part) != std::string::npos;
  };
}

TEST(Trouble, EachHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (auto trouble = Trouble::none; trouble <= Trouble::local_error;
       trouble = static_cast<Trouble>(static_cast<int>(trouble) + 1)) {
    EXPECT_TRUE(names.insert(to_string(trouble)).second) << to_string(trouble);
  }
}

TEST(Trouble, OfACardInServiceIsOverAfterTenSeconds) {
  RecentTrouble recent;
  const TimePoint begin = monotonic_now();
  EXPECT_EQ(recent.at(begin), Trouble::none);
  recent.note(Trouble::corrupt_values, begin);
  recent.note(Trouble::slow, begin + milliseconds(500));
  EXPECT_EQ(recent.at(begin + milliseconds(10'499)), Trouble::slow);
  EXPECT_EQ(recent.at(begin + milliseconds(10'502)), Trouble::none);
}

TEST(CardLife, AnotherSerialIsRefusedUntilTheRightOneAnswers) {
  CardTarget target({.serial = "OTHER"});
  NvmeCards cards;
  cards.set->apply({target.spec()});
  EXPECT_TRUE(reaches(*cards.set, "CARD0", because(Trouble::wrong_serial, "OTHER")));
  EXPECT_FALSE(cards.ready(0));
  target.change([](Behaviour& now) { now.serial = "CARD0"; });
  EXPECT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
}

TEST(CardLife, AnotherSerialAfterAReconnectIsNotTakenBack) {
  CardTarget target;
  NvmeCards cards;
  cards.set->apply({target.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  target.change([](Behaviour& now) { now.serial = "OTHER"; });
  target.hang_up();
  EXPECT_TRUE(reaches(*cards.set, "CARD0", because(Trouble::wrong_serial, "OTHER")));
  Request request(IoOp::exist, key(1));
  EXPECT_FALSE(cards.submit(request));
}

TEST(CardLife, ASubsystemWithoutKvNamespaceIsNamedSo) {
  CardTarget none({.kv_namespace = false});
  CardTarget old({.io_command_sets = false});
  NvmeCards cards;
  auto second = old.spec("CARD1");
  cards.set->apply({none.spec(), second});
  EXPECT_TRUE(reaches(*cards.set, "CARD0", because(Trouble::no_kv_namespace, "no KV namespace")));
  EXPECT_TRUE(reaches(*cards.set, "CARD1", because(Trouble::no_kv_namespace, "I/O command sets")));
}

TEST(CardLife, TheNamespaceIsChosenByItsUuid) {
  CardTarget target;
  NvmeCards cards;
  auto spec = target.spec();
  spec.uuid = "99999999-0000-0000-0000-000000000000";
  cards.set->apply({spec});
  EXPECT_TRUE(reaches(*cards.set, "CARD0", because(Trouble::no_kv_namespace, kUuid)));
  spec.uuid = kUuid;
  cards.set->apply({spec});
  EXPECT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
}

TEST(CardLife, FewerQueuesThanWorkersServeAllOfThem) {
  for (const bool refused : {false, true}) {
    Behaviour behaviour;
    if (refused) behaviour.refused_from_queue = 2;
    if (!refused) behaviour.granted_queues = 1;
    CardTarget target(behaviour);
    NvmeCards cards;
    cards.set->apply({target.spec()});
    ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
    EXPECT_EQ(cards.snapshot().queues, 1U);
    EXPECT_TRUE(cards.ready(0));
    EXPECT_FALSE(cards.ready(1));
    EXPECT_EQ(cards.workers.call(1, [&] { return cards.set->serving_worker(1, "CARD0"); }), 0U);
  }
}

TEST(CardLife, NoQueueAtAllIsAStateOfItsOwn) {
  CardTarget target({.refused_from_queue = 1});
  NvmeCards cards;
  cards.set->apply({target.spec()});
  EXPECT_TRUE(reaches(*cards.set, "CARD0", because(Trouble::too_few_queues, "was refused")));
  EXPECT_EQ(cards.workers.call(1, [&] { return cards.set->serving_worker(1, "CARD0"); }), std::nullopt);
}

TEST(CardLife, ALostConnectionEndsRequestsAndTheCardComesBack) {
  CardTarget target({.silent_io = true});
  NvmeCards cards;
  cards.set->apply({target.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  Request request(IoOp::exist, key(1));
  ASSERT_TRUE(cards.submit(request));
  target.hang_up();
  EXPECT_EQ(request.wait().status, IoStatus::disconnected);
  target.change([](Behaviour& now) { now.silent_io = false; });
  EXPECT_TRUE(reaches(*cards.set, "CARD0", [](const CardSnapshot& card) {
    return card.state == CardState::live && card.reconnects == 1;
  }));
  const Trouble trouble = cards.snapshot().trouble;
  EXPECT_TRUE(trouble == Trouble::closed || trouble == Trouble::reset) << to_string(trouble);
  Request again(IoOp::exist, key(1));
  EXPECT_EQ(cards.run(again).status, IoStatus::not_found);
}

TEST(CardLife, ALostKeepAliveTakesTheCardOut) {
  auto config = quick_config();
  config.keep_alive = milliseconds(200);
  CardTarget target({.silent_admin = true});
  NvmeCards cards(config);
  cards.set->apply({target.spec()});
  EXPECT_TRUE(reaches(*cards.set, "CARD0", because(Trouble::hung, "keep-alive lost")));
  target.change([](Behaviour& now) { now.silent_admin = false; });
  EXPECT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
}

TEST(CardLife, PathsAreTriedInTurn) {
  CardTarget target;
  std::optional<CardPath> dead;
  {
    const CardTarget gone;
    dead = gone.path();
  }
  NvmeCards cards;
  auto spec = target.spec();
  spec.paths.insert(spec.paths.begin(), *dead);
  cards.set->apply({spec});
  EXPECT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  EXPECT_TRUE(contains(cards.snapshot().path, target.path().trsvcid));
}

TEST(CardLife, ACardMovesWithItsPathAndStaysWhereItIsStillListed) {
  CardTarget here;
  CardTarget there;
  NvmeCards cards;
  cards.set->apply({here.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  auto spec = here.spec();
  spec.paths.push_back(there.path());
  cards.set->apply({spec});
  spec.paths = {there.path()};
  const std::size_t before = here.connects();
  cards.set->apply({spec});
  EXPECT_TRUE(reaches(*cards.set, "CARD0", [&](const CardSnapshot& card) {
    return card.state == CardState::live && card.path.ends_with(there.path().trsvcid);
  }));
  EXPECT_EQ(here.connects(), before);
}

TEST(CardLife, UnusablePathsDisturbNoOtherCard) {
  CardTarget target;
  NvmeCards cards;
  CardSpec none{"NONE", "nqn.none", "", {}};
  CardSpec rdma{"RDMA", "nqn.rdma", "", {{"rdma", "127.0.0.1", "4420"}}};
  CardSpec name{"NAME", "nqn.name", "", {{"tcp", "localhost", "4420"}}};
  cards.set->apply({none, rdma, name, target.spec()});
  EXPECT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  EXPECT_TRUE(reaches(*cards.set, "NONE", because(Trouble::no_path, "no path is listed")));
  EXPECT_TRUE(reaches(*cards.set, "RDMA", because(Trouble::no_path, "\"rdma\"")));
  EXPECT_TRUE(reaches(*cards.set, "NAME", because(Trouble::no_path, "\"localhost\"")));
}

TEST(CardLife, ARemovedCardEndsItsRequestsAndOnlyItsOwn) {
  CardTarget silent({.silent_io = true});
  CardTarget other({.serial = "CARD1"});
  NvmeCards cards;
  cards.set->apply({silent.spec(), other.spec("CARD1")});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  ASSERT_TRUE(reaches(*cards.set, "CARD1", CardState::live));
  Request first(IoOp::exist, key(1));
  Request second(IoOp::store, key(2), pattern(50000, 1));
  ASSERT_TRUE(cards.submit(first, "CARD0", 0));
  ASSERT_TRUE(cards.submit(second, "CARD0", 1));
  cards.set->apply({other.spec("CARD1")});
  EXPECT_EQ(first.wait().status, IoStatus::disconnected);
  EXPECT_EQ(second.wait().status, IoStatus::disconnected);
  Request alive(IoOp::exist, key(1));
  EXPECT_EQ(cards.run(alive, "CARD1").status, IoStatus::not_found);
  EXPECT_EQ(cards.snapshot("CARD1").reconnects, 0U);
  EXPECT_EQ(cards.set->status().size(), 1U);
}

TEST(CardLife, ATargetThatNeverAnswersMeetsTheDeadlineOfTheAttempt) {
  fabric::test::ScriptedTarget target([](fabric::test::Peer& peer) {
    peer.greet();
    while (peer.ok())
      peer.skip();
  });
  auto config = quick_config();
  config.connect_timeout = milliseconds(100);
  NvmeCards cards(config);
  cards.set->apply({{"CARD0", "nqn.test", "", {{"tcp", target.host(), target.port()}}}});
  EXPECT_TRUE(reaches(*cards.set, "CARD0", because(Trouble::hung, "within 100 ms")));
}

TEST(CardLife, RetriesAreLoggedOnceForEachChangeOfState) {
  std::optional<CardSpec> gone;
  {
    CardTarget target;
    gone = target.spec();
  }
  auto events = std::make_shared<EventQueue>(1000);
  const auto before = set_event_sink(events);
  {
    NvmeCards cards;
    cards.set->apply({*gone});
    EXPECT_TRUE(reaches(*cards.set, "CARD0", [](const CardSnapshot& card) { return card.attempts >= 6; }));
    EXPECT_EQ(cards.snapshot().trouble, Trouble::unreachable) << "whether it waits or tries again";
  }
  set_event_sink(before);
  std::vector<std::string> states;
  for (const Event& event : events->take()) {
    if (event.name == "card_state") states.push_back(std::get<std::string>(event.fields.at(1).value));
  }
  EXPECT_EQ(states, (std::vector<std::string>{"connecting", "backoff", "stopped"}));
}

TEST(CardLife, SetsThatComeAndGoWhileTheyConnectLeaveNothing) {
  CardTarget target;
  WorkerThreads workers(2);
  for (int round = 0; round < 30; ++round) {
    const auto set = make_nvme_card_set(workers.reactors(), quick_config());
    set->apply({target.spec()});
    EXPECT_TRUE(round % 3 != 0 || reaches(*set, "CARD0", CardState::live));
    EXPECT_TRUE(set->stop(kPatience));
    EXPECT_TRUE(set->status().empty());
  }
}

TEST(CardConfig, NonsenseIsRefused) {
  WorkerThreads workers(1);
  const auto with = [&](auto change) {
    auto config = quick_config();
    change(config);
    return make_nvme_card_set(workers.reactors(), config);
  };
  EXPECT_THROW(with([](auto& config) { config.host_uuid = "x"; }), std::invalid_argument);
  EXPECT_THROW(with([](auto& config) { config.host_nqn = ""; }), std::invalid_argument);
  EXPECT_THROW(with([](auto& config) { config.queue_depth = 1024; }), std::invalid_argument);
  EXPECT_THROW(with([](auto& config) { config.backoff_first = milliseconds(0); }), std::invalid_argument);
  EXPECT_THROW(make_nvme_card_set({}, quick_config()), std::invalid_argument);
}

}  // namespace
}  // namespace akv::card::test
