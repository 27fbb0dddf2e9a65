// Values to and from a card over NVMe/TCP, by every way they can move.
#include <gtest/gtest.h>

#include <algorithm>

#include "card_nvme_support.hpp"
#include "card_target.hpp"

namespace akv::card::test {
namespace {

class CardIo : public ::testing::TestWithParam<Digests> {
 protected:
  CardIo() : cards(quick_config(GetParam())) {
    cards.set->apply({target.spec()});
    EXPECT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  }

  CardTarget target;
  NvmeCards cards;
  std::size_t asked_before{0};
};

INSTANTIATE_TEST_SUITE_P(Digests, CardIo,
                         ::testing::Values(Digests{DigestPolicy::off, DigestPolicy::off},
                                           Digests{DigestPolicy::prefer, DigestPolicy::require}));

TEST_P(CardIo, ValuesOfManySizesComeBackOnAnyWorker) {
  for (const std::size_t size : {1U, 63U, 64U, 65U, 4096U, 8192U, 8193U, 100000U, 1U << 20U}) {
    Request store(IoOp::store, key(static_cast<unsigned>(size)), pattern(size, 1));
    ASSERT_EQ(cards.run(store, "CARD0", 0).status, IoStatus::ok) << size;
    Request retrieve(IoOp::retrieve, store.key, std::vector<std::byte>(size));
    const IoResult result = cards.run(retrieve, "CARD0", 1);
    ASSERT_EQ(result.status, IoStatus::ok) << size;
    EXPECT_EQ(result.value_size, size);
    EXPECT_EQ(retrieve.bytes, store.bytes);
    EXPECT_EQ(retrieve.seen, store.bytes);
  }
}

TEST_P(CardIo, AValueMayBeShorterOrLongerThanTheBuffer) {
  Request store(IoOp::store, key(1), pattern(5000, 2));
  ASSERT_EQ(cards.run(store).status, IoStatus::ok);
  Request wide(IoOp::retrieve, key(1), std::vector<std::byte>(9000));
  EXPECT_EQ(cards.run(wide).value_size, 5000U);
  EXPECT_TRUE(std::ranges::equal(std::span(wide.bytes).first(5000), store.bytes));
  Request narrow(IoOp::retrieve, key(1), std::vector<std::byte>(100));
  EXPECT_EQ(cards.run(narrow).value_size, 5000U);
  EXPECT_TRUE(std::ranges::equal(narrow.bytes, std::span(store.bytes).first(100)));
}

// The command of a value that does not fit in it goes ahead, and the card asks for the data meanwhile.
TEST_P(CardIo, AValueMayBeChangedUntilItIsRead) {
  for (const std::size_t size : {64U, 8192U, 8193U, 300'000U}) {
    Request store(IoOp::store, key(static_cast<unsigned>(size)), std::vector<std::byte>(size));
    const std::size_t asked = size > 8192 ? 1 : 0;
    store.at_sending = [&] {
      EXPECT_TRUE(target.wait_asked(asked_before + asked));
      std::ranges::copy(pattern(size, 1), store.bytes.begin());
    };
    ASSERT_EQ(cards.run(store).status, IoStatus::ok) << size;
    EXPECT_TRUE(store.was_read());
    asked_before += asked;
    Request retrieve(IoOp::retrieve, store.key, std::vector<std::byte>(size));
    ASSERT_EQ(cards.run(retrieve).status, IoStatus::ok) << size;
    EXPECT_EQ(retrieve.bytes, pattern(size, 1));
  }
}

TEST_P(CardIo, AConnectionThatEndsWhileCommandsGoOutEndsThemAll) {
  std::vector<std::unique_ptr<Request>> stores;
  for (unsigned n = 0; n < 8; ++n)
    stores.push_back(std::make_unique<Request>(IoOp::store, key(n), pattern(20'000, 1)));
  stores.front()->at_sending = [&] { EXPECT_TRUE(target.wait_ended(target.hang_up())); };
  EXPECT_TRUE(cards.workers.call(0, [&] {
    IoQueue* const queue = cards.set->queue(0, "CARD0");
    return std::ranges::all_of(stores, [&](const auto& store) { return queue->submit(*store); });
  }));
  for (const auto& store : stores)
    EXPECT_NE(store->wait().status, IoStatus::ok);
  EXPECT_EQ(target.stored_values(), 0U);
}

TEST_P(CardIo, ExistAndRemoveTellWhatIsThere) {
  Request store(IoOp::store, key(1), pattern(10, 3));
  ASSERT_EQ(cards.run(store).status, IoStatus::ok);
  Request exist(IoOp::exist, key(1));
  EXPECT_EQ(cards.run(exist).status, IoStatus::ok);
  Request remove(IoOp::remove, key(1));
  EXPECT_EQ(cards.run(remove).status, IoStatus::ok);
  Request again(IoOp::remove, key(1));
  EXPECT_EQ(cards.run(again).status, IoStatus::not_found);
  Request retrieve(IoOp::retrieve, key(1), std::vector<std::byte>(10));
  EXPECT_EQ(cards.run(retrieve).status, IoStatus::not_found);
}

TEST_P(CardIo, TheSuccessFlagStandsForACompletion) {
  Request store(IoOp::store, key(1), pattern(5000, 4));
  ASSERT_EQ(cards.run(store).status, IoStatus::ok);
  target.change([](Behaviour& now) { now.success_flag = true; });
  Request retrieve(IoOp::retrieve, key(1), std::vector<std::byte>(9000));
  const IoResult result = cards.run(retrieve);
  EXPECT_EQ(result.status, IoStatus::ok);
  EXPECT_EQ(result.value_size, 5000U);
}

TEST_P(CardIo, ASizeThatWasNotSentIsAnError) {
  Request store(IoOp::store, key(1), pattern(500, 4));
  ASSERT_EQ(cards.run(store).status, IoStatus::ok);
  target.change([](Behaviour& now) { now.lying_size = true; });
  Request retrieve(IoOp::retrieve, key(1), std::vector<std::byte>(1000));
  EXPECT_EQ(cards.run(retrieve).status, IoStatus::error);
  const CardSnapshot snapshot = cards.snapshot();
  EXPECT_EQ(snapshot.state, CardState::live);
  EXPECT_EQ(snapshot.trouble, Trouble::wrong_length);
}

TEST_P(CardIo, AValueBeyondTheCardsLimitIsNotSent) {
  Request store(IoOp::store, key(1), pattern((1U << 20U) + 1, 5));
  EXPECT_EQ(cards.run(store).status, IoStatus::too_large);
  EXPECT_FALSE(store.was_read());
  EXPECT_EQ(target.stored_values(), 0U);
  EXPECT_EQ(cards.snapshot().max_value_bytes, 1U << 20U);
}

TEST_P(CardIo, TooManyVectorsAreAnErrorOfTheOneRequest) {
  Request request(IoOp::retrieve, key(1), std::vector<std::byte>(9));
  std::vector<iovec> vectors;
  for (std::byte& byte : request.bytes)
    vectors.push_back({&byte, 1});
  request.data = vectors;
  EXPECT_EQ(cards.run(request).status, IoStatus::error);
  EXPECT_EQ(cards.snapshot().state, CardState::live);
}

TEST_P(CardIo, AConnectionThatIsCutInTheMiddleOfAValueTellsOfPartsOnly) {
  Request store(IoOp::store, key(1), pattern(1U << 20U, 6));
  ASSERT_EQ(cards.run(store).status, IoStatus::ok);
  target.change([](Behaviour& now) { now.cut_after = 700'000; });
  Request retrieve(IoOp::retrieve, key(1), std::vector<std::byte>(1U << 20U));
  EXPECT_EQ(cards.run(retrieve).status, IoStatus::disconnected);
  EXPECT_LT(retrieve.seen.size(), store.bytes.size());
  EXPECT_TRUE(std::ranges::equal(retrieve.seen, std::span(store.bytes).first(retrieve.seen.size())));
  target.change([](Behaviour& now) { now.cut_after = 0; });
  ASSERT_TRUE(reaches(*cards.set, "CARD0", [](const CardSnapshot& card) {
    return card.state == CardState::live && card.reconnects >= 1;
  }));
  Request again(IoOp::retrieve, key(1), std::vector<std::byte>(1U << 20U));
  ASSERT_EQ(cards.run(again).status, IoStatus::ok);
  EXPECT_EQ(again.seen, store.bytes);
}

// A client can write where its own block arrives and so make the digest wrong: that is no ground to take the
// card away from everybody.
TEST(CardDigest, AWrongOneOfAValueCostsThatCommandAlone) {
  for (const bool success_flag : {false, true}) {
    auto config = quick_config();
    config.data_digest = DigestPolicy::require;
    CardTarget target({.success_flag = success_flag});
    NvmeCards cards(config);
    cards.set->apply({target.spec()});
    ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
    Request store(IoOp::store, key(1), pattern(100000, 1));
    ASSERT_EQ(cards.run(store).status, IoStatus::ok);
    target.change([](Behaviour& now) { now.wrong_digest = true; });
    for (int i = 0; i < 5; ++i) {
      Request damaged(IoOp::retrieve, key(1), std::vector<std::byte>(100000));
      const IoResult result = cards.run(damaged);
      EXPECT_EQ(result.status, IoStatus::error);
      EXPECT_EQ(result.nvme_status, nvme::kTransientTransportError);
    }
    target.change([](Behaviour& now) { now.wrong_digest = false; });
    Request whole(IoOp::retrieve, key(1), std::vector<std::byte>(100000));
    EXPECT_EQ(cards.run(whole).status, IoStatus::ok);
    EXPECT_EQ(whole.bytes, store.bytes);
    const CardSnapshot snapshot = cards.snapshot();
    EXPECT_EQ(snapshot.state, CardState::live);
    EXPECT_EQ(snapshot.reconnects, 0U);
    EXPECT_EQ(snapshot.trouble, Trouble::wrong_digest);
    EXPECT_EQ(snapshot.errors, 5U);
  }
}

TEST(CardQueue, MoreThanTheWireTakesWaitsInLineAndAllArrive) {
  auto config = quick_config();
  config.max_inflight_bytes = 150000;
  config.queue_depth = 16;
  CardTarget target;
  NvmeCards cards(config, 1);
  cards.set->apply({target.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  std::vector<std::unique_ptr<Request>> requests;
  for (unsigned n = 0; n < 17; ++n)
    requests.push_back(std::make_unique<Request>(IoOp::store, key(n), pattern(100000, n)));
  const auto accepted = cards.workers.call(0, [&] {
    std::size_t count = 0;
    for (auto& request : requests)
      count += cards.set->queue(0, "CARD0")->submit(*request) ? 1U : 0U;
    return count;
  });
  EXPECT_EQ(accepted, 16U);
  for (std::size_t n = 0; n < accepted; ++n)
    EXPECT_EQ(requests[n]->wait().status, IoStatus::ok);
  EXPECT_EQ(target.stored_values(), 16U);
  const CardSnapshot snapshot = cards.snapshot();
  EXPECT_EQ(snapshot.stores, 16U);
  EXPECT_EQ(snapshot.bytes_out, 1600000U);
  EXPECT_EQ(snapshot.inflight, 0U);
}

}  // namespace
}  // namespace akv::card::test
