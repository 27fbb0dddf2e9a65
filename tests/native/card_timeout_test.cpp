// Deadlines of commands, and buffers that stay quarantined until nothing refers to them.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "card_nvme_support.hpp"
#include "card_target.hpp"

namespace akv::card::test {
namespace {

using std::chrono::milliseconds;

auto hangs(std::string part) {
  return [part = std::move(part)](const CardSnapshot& card) {
    return card.trouble == Trouble::hung && card.last_error.find(part) != std::string::npos;
  };
}

NvmeCardConfig short_deadline() {
  auto config = quick_config();
  config.io_timeout = milliseconds(300);
  return config;
}

struct CardTimeout : ::testing::Test {
  CardTimeout() : cards(short_deadline(), 1) {
    cards.set->apply({target.spec()});
    EXPECT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
    Request store(IoOp::store, key(1), pattern(5000, 1));
    EXPECT_EQ(cards.run(store).status, IoStatus::ok);
    target.change([](Behaviour& now) { now.silent_io = now.silent_aborts = true; });
  }
  void answer_again() {
    target.change([](Behaviour& now) { now.silent_io = false; });
  }

  CardTarget target;
  NvmeCards cards;
};

TEST_F(CardTimeout, IsToldAtTheDeadlineAndTheBufferComesBackWithTheLateAnswer) {
  Request retrieve(IoOp::retrieve, key(1), std::vector<std::byte>(5000));
  const TimePoint before = monotonic_now();
  ASSERT_TRUE(cards.submit(retrieve));
  EXPECT_EQ(retrieve.wait_completed().status, IoStatus::timeout);
  EXPECT_GE(monotonic_now() - before, milliseconds(299));
  EXPECT_FALSE(retrieve.released_yet());
  EXPECT_EQ(cards.snapshot().inflight, 1U);
  answer_again();
  EXPECT_EQ(retrieve.wait().status, IoStatus::timeout);
  const CardSnapshot snapshot = cards.snapshot();
  EXPECT_EQ(snapshot.state, CardState::live);
  EXPECT_EQ(snapshot.trouble, Trouble::slow);
  EXPECT_EQ(snapshot.timeouts, 1U);
  EXPECT_EQ(snapshot.inflight, 0U);
}

TEST_F(CardTimeout, ThreeInARowTakeTheCardOutAndReleaseEverything) {
  std::vector<std::unique_ptr<Request>> requests;
  for (unsigned n = 0; n < 3; ++n) {
    requests.push_back(std::make_unique<Request>(IoOp::retrieve, key(1), std::vector<std::byte>(5000)));
    ASSERT_TRUE(cards.submit(*requests.back()));
  }
  for (auto& request : requests)
    EXPECT_EQ(request->wait().status, IoStatus::timeout);
  EXPECT_TRUE(reaches(*cards.set, "CARD0", hangs("3 commands in a row passed their deadline of 300 ms")));
  answer_again();
  EXPECT_TRUE(reaches(*cards.set, "CARD0", [](const CardSnapshot& card) {
    return card.state == CardState::live && card.reconnects >= 1;
  }));
}

TEST_F(CardTimeout, RequestsBehindTheLastStrikeAreDisconnected) {
  std::vector<std::unique_ptr<Request>> requests;
  for (unsigned n = 0; n < 6; ++n) {
    requests.push_back(std::make_unique<Request>(IoOp::exist, key(1)));
    ASSERT_TRUE(cards.submit(*requests.back()));
  }
  std::size_t timeouts = 0;
  for (auto& request : requests)
    timeouts += request->wait().status == IoStatus::timeout ? 1U : 0U;
  EXPECT_EQ(timeouts, 3U);
}

TEST_F(CardTimeout, AnAnswerInTimeClearsTheStrikes) {
  for (int round = 0; round < 3; ++round) {
    Request late(IoOp::exist, key(1));
    const TimePoint before = monotonic_now();
    ASSERT_TRUE(cards.submit(late));
    EXPECT_EQ(late.wait_completed().status, IoStatus::timeout);
    EXPECT_LT(monotonic_now() - before, milliseconds(800)) << "told with the end of an older quarantine";
    answer_again();
    EXPECT_EQ(late.wait().status, IoStatus::timeout);
    Request quick(IoOp::exist, key(1));
    EXPECT_EQ(cards.run(quick).status, IoStatus::ok);
    target.change([](Behaviour& now) { now.silent_io = true; });
  }
  EXPECT_EQ(cards.snapshot().reconnects, 0U);
  EXPECT_EQ(cards.snapshot().timeouts, 3U);
}

TEST_F(CardTimeout, WhatArrivesAfterTheDeadlineIsNotTold) {
  target.change([](Behaviour& now) {
    now.silent_io = false;
    now.stuck_after_half = true;
  });
  Request retrieve(IoOp::retrieve, key(1), std::vector<std::byte>(5000));
  ASSERT_TRUE(cards.submit(retrieve));
  EXPECT_EQ(retrieve.wait_completed().status, IoStatus::timeout);
  const std::size_t seen = retrieve.seen.size();
  EXPECT_GT(seen, 0U);
  EXPECT_LT(seen, 5000U);
  target.change([](Behaviour& now) { now.stuck_after_half = false; });
  EXPECT_EQ(retrieve.wait().status, IoStatus::timeout);
  EXPECT_EQ(retrieve.seen.size(), seen);
  EXPECT_EQ(retrieve.bytes, pattern(5000, 1)) << "the card wrote it nonetheless";
}

TEST(CardTimeouts, OfCommandsThatWereNotSentAreNoStrikes) {
  auto config = short_deadline();
  config.max_inflight_bytes = 5000;
  CardTarget target({.silent_io = true, .silent_aborts = true});
  NvmeCards cards(config, 1);
  cards.set->apply({target.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  std::vector<std::unique_ptr<Request>> requests;
  for (unsigned n = 0; n < 5; ++n)
    requests.push_back(std::make_unique<Request>(IoOp::retrieve, key(1), std::vector<std::byte>(5000)));
  const bool accepted = cards.workers.call(0, [&] {
    return std::ranges::all_of(requests,
                               [&](auto& each) { return cards.set->queue(0, "CARD0")->submit(*each); });
  });
  ASSERT_TRUE(accepted);
  for (auto& request : requests)
    EXPECT_EQ(request->wait_completed().status, IoStatus::timeout);
  target.change([](Behaviour& now) { now.silent_io = false; });
  EXPECT_EQ(requests.front()->wait().status, IoStatus::timeout);
  const CardSnapshot snapshot = cards.snapshot();
  EXPECT_EQ(snapshot.state, CardState::live);
  EXPECT_EQ(snapshot.reconnects, 0U);
  EXPECT_EQ(snapshot.timeouts, 5U);
}

// As when the process or its machine was suspended. The answers are more than one look at the socket takes.
TEST(CardTimeouts, AWorkerThatStoodStillHearsTheCardBeforeItJudges) {
  constexpr std::size_t kValue = 1U << 20U;
  auto config = quick_config();
  config.io_timeout = milliseconds(2000);
  config.max_inflight_bytes = 8 * kValue;
  CardTarget target;
  NvmeCards cards(config, 1);
  cards.set->apply({target.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  Request store(IoOp::store, key(1), pattern(kValue, 1));
  ASSERT_EQ(cards.run(store).status, IoStatus::ok);
  target.change([](Behaviour& now) { now.silent_io = true; });
  std::vector<std::unique_ptr<Request>> requests;
  for (unsigned n = 0; n < 6; ++n) {
    requests.push_back(std::make_unique<Request>(IoOp::retrieve, key(1), std::vector<std::byte>(kValue)));
    ASSERT_TRUE(cards.submit(*requests.back()));
  }
  cards.workers.call(0, [&] {
    target.change([](Behaviour& now) { now.silent_io = false; });
    std::this_thread::sleep_for(config.io_timeout + milliseconds(100));
  });
  for (auto& request : requests) {
    EXPECT_EQ(request->wait().status, IoStatus::ok);
    EXPECT_EQ(request->bytes, store.bytes);
  }
  const CardSnapshot snapshot = cards.snapshot();
  EXPECT_EQ(snapshot.state, CardState::live);
  EXPECT_EQ(snapshot.reconnects, 0U);
  EXPECT_EQ(snapshot.timeouts, 0U);
}

// One command that is never answered would hold its buffer for ever: the connection goes instead.
TEST_F(CardTimeout, ACommandThatIsNeverAnsweredCostsTheConnection) {
  Request lost(IoOp::retrieve, key(1), std::vector<std::byte>(5000));
  ASSERT_TRUE(cards.submit(lost));
  EXPECT_EQ(lost.wait().status, IoStatus::timeout);
  EXPECT_TRUE(reaches(*cards.set, "CARD0", hangs("unanswered long after its deadline")));
}

}  // namespace
}  // namespace akv::card::test
