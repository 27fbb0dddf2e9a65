// The initiator against the real software card, suspended, killed and started again.
#include <gtest/gtest.h>

#include <algorithm>

#include "card_nvme_support.hpp"
#include "card_process.hpp"

namespace akv::card::test {
namespace {

using std::chrono::milliseconds;

auto live_again(std::uint64_t reconnects) {
  return [reconnects](const CardSnapshot& card) {
    return card.state == CardState::live && card.reconnects >= reconnects;
  };
}

class Softcard : public ::testing::TestWithParam<Digests> {};

INSTANTIATE_TEST_SUITE_P(Digests, Softcard,
                         ::testing::Values(Digests{DigestPolicy::off, DigestPolicy::off},
                                           Digests{DigestPolicy::require, DigestPolicy::off},
                                           Digests{DigestPolicy::off, DigestPolicy::require},
                                           Digests{DigestPolicy::require, DigestPolicy::require}));

TEST_P(Softcard, KeepsValuesOfOneByteToFourMebibytes) {
  const auto config = quick_config(GetParam());
  ScratchDirectory directory;
  SoftcardProcess card(directory, "CARD0");
  NvmeCards cards(config);
  cards.set->apply({card.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  for (const std::size_t size :
       {1U, 64U, 4095U, 8192U, 8193U, 65536U, 1U << 20U, (2U << 20U) + 64U, 4U << 20U}) {
    Request store(IoOp::store, key(static_cast<unsigned>(size)), pattern(size, 1));
    ASSERT_EQ(cards.run(store, "CARD0", 0).status, IoStatus::ok) << size;
    Request retrieve(IoOp::retrieve, store.key, std::vector<std::byte>(size));
    const IoResult result = cards.run(retrieve, "CARD0", 1);
    ASSERT_EQ(result.status, IoStatus::ok) << size;
    EXPECT_EQ(result.value_size, size);
    EXPECT_EQ(retrieve.bytes, store.bytes) << size;
    Request remove(IoOp::remove, store.key);
    EXPECT_EQ(cards.run(remove).status, IoStatus::ok);
    Request exist(IoOp::exist, store.key);
    EXPECT_EQ(cards.run(exist).status, IoStatus::not_found);
  }
}

TEST_P(Softcard, ServesManyRequestsOfBothWorkersAtOnce) {
  const auto config = quick_config(GetParam());
  ScratchDirectory directory;
  SoftcardProcess card(directory, "CARD0");
  NvmeCards cards(config);
  cards.set->apply({card.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  for (const IoOp op : {IoOp::store, IoOp::retrieve}) {
    std::vector<std::unique_ptr<Request>> requests;
    for (unsigned n = 0; n < 100; ++n) {
      const std::size_t size = 1000 + 3000 * n;
      auto bytes = op == IoOp::store ? pattern(size, n) : std::vector<std::byte>(size);
      requests.push_back(std::make_unique<Request>(op, key(n), std::move(bytes)));
      ASSERT_TRUE(cards.submit(*requests.back(), "CARD0", n % 2));
    }
    for (unsigned n = 0; n < 100; ++n) {
      EXPECT_EQ(requests[n]->wait().status, IoStatus::ok);
      EXPECT_EQ(requests[n]->bytes, pattern(1000 + 3000 * n, n));
    }
  }
}

TEST(SoftcardFault, ASuspendedCardIsStruckOutAndItsLateAnswersReachNoBuffer) {
  auto config = quick_config();
  config.io_timeout = milliseconds(200);
  ScratchDirectory directory;
  SoftcardProcess card(directory, "CARD0");
  NvmeCards cards(config, 1);
  cards.set->apply({card.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  Request store(IoOp::store, key(1), pattern(1U << 20U, 1));
  ASSERT_EQ(cards.run(store).status, IoStatus::ok);

  card.suspend();
  std::vector<std::unique_ptr<Request>> requests;
  for (int n = 0; n < 4; ++n) {
    requests.push_back(std::make_unique<Request>(IoOp::retrieve, key(1), std::vector<std::byte>(1U << 20U)));
    ASSERT_TRUE(cards.submit(*requests.back()));
  }
  // Released: the memory has a new owner from here on.
  for (auto& request : requests) {
    EXPECT_NE(request->wait().status, IoStatus::ok);
    std::ranges::fill(request->bytes, std::byte{0x77});
  }
  EXPECT_FALSE(cards.ready(0));
  card.resume();
  ASSERT_TRUE(reaches(*cards.set, "CARD0", live_again(1)));
  Request retrieve(IoOp::retrieve, key(1), std::vector<std::byte>(1U << 20U));
  EXPECT_EQ(cards.run(retrieve).status, IoStatus::ok);
  EXPECT_EQ(retrieve.bytes, store.bytes);
  for (auto& request : requests) {
    EXPECT_TRUE(std::ranges::all_of(request->bytes, [](std::byte byte) { return byte == std::byte{0x77}; }));
  }
}

TEST(SoftcardFault, AShortSuspensionCostsOneTimeoutAndTheBufferStaysQuarantined) {
  auto config = quick_config();
  config.io_timeout = milliseconds(300);
  ScratchDirectory directory;
  SoftcardProcess card(directory, "CARD0");
  NvmeCards cards(config, 1);
  cards.set->apply({card.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  Request store(IoOp::store, key(1), pattern(1U << 20U, 1));
  ASSERT_EQ(cards.run(store).status, IoStatus::ok);
  card.suspend();
  Request retrieve(IoOp::retrieve, key(1), std::vector<std::byte>(1U << 20U));
  ASSERT_TRUE(cards.submit(retrieve));
  EXPECT_EQ(retrieve.wait_completed().status, IoStatus::timeout);
  EXPECT_FALSE(retrieve.released_yet());
  card.resume();
  retrieve.wait();
  EXPECT_EQ(cards.snapshot().reconnects, 0U);
}

TEST(SoftcardFault, ASuspendedCardLosesItsKeepAlive) {
  auto config = quick_config();
  config.keep_alive = milliseconds(300);
  ScratchDirectory directory;
  SoftcardProcess card(directory, "CARD0");
  NvmeCards cards(config);
  cards.set->apply({card.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  card.suspend();
  EXPECT_TRUE(reaches(*cards.set, "CARD0", [](const CardSnapshot& snapshot) {
    return snapshot.state != CardState::live && snapshot.trouble == Trouble::hung &&
           snapshot.last_error.find("keep-alive lost") != std::string::npos;
  }));
  card.resume();
  EXPECT_TRUE(reaches(*cards.set, "CARD0", live_again(1)));
}

TEST(SoftcardFault, AKilledCardComesBackOnAnotherPortWithItsValues) {
  ScratchDirectory directory;
  const std::vector<std::string> file{"--file", directory.path("values")};
  auto card = std::make_unique<SoftcardProcess>(directory, "CARD0", "xdp0", file);
  SoftcardProcess other(directory, "CARD1", "xdp1");
  NvmeCards cards;
  cards.set->apply({card->spec(), other.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  ASSERT_TRUE(reaches(*cards.set, "CARD1", CardState::live));
  Request store(IoOp::store, key(1), pattern(100000, 1));
  ASSERT_EQ(cards.run(store).status, IoStatus::ok);
  card->kill();
  EXPECT_TRUE(reaches(*cards.set, "CARD0", CardState::backoff));
  card = std::make_unique<SoftcardProcess>(directory, "CARD0", "xdp7", file);
  cards.set->apply({card->spec(), other.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", live_again(1)));
  Request retrieve(IoOp::retrieve, key(1), std::vector<std::byte>(100000));
  EXPECT_EQ(cards.run(retrieve).status, IoStatus::ok);
  EXPECT_EQ(retrieve.bytes, store.bytes);
  EXPECT_EQ(cards.snapshot("CARD1").reconnects, 0U);
}

TEST(SoftcardFault, AnotherCardAtTheOldAddressIsNotTaken) {
  ScratchDirectory directory;
  SoftcardProcess card(directory, "CARD0");
  NvmeCards cards;
  auto spec = card.spec();
  spec.serial = "CARD9";
  cards.set->apply({spec});
  EXPECT_TRUE(reaches(*cards.set, "CARD9", CardState::wrong_serial));
}

TEST(SoftcardFault, FewerQueuesThanWorkersAreEnough) {
  ScratchDirectory directory;
  SoftcardProcess card(directory, "CARD0", "xdp0", {"--max-queues", "1"});
  NvmeCards cards;
  cards.set->apply({card.spec()});
  ASSERT_TRUE(reaches(*cards.set, "CARD0", CardState::live));
  EXPECT_EQ(cards.snapshot().queues, 1U);
  EXPECT_EQ(cards.workers.call(1, [&] { return cards.set->serving_worker(1, "CARD0"); }), 0U);
}

TEST(SoftcardFault, WorkInFlightWhenTheCardIsKilledIsAllAccountedFor) {
  ScratchDirectory directory;
  NvmeCards cards;
  for (int round = 0; round < 5; ++round) {
    auto card = std::make_unique<SoftcardProcess>(directory, "CARD0");
    cards.set->apply({card->spec()});
    ASSERT_TRUE(reaches(*cards.set, "CARD0", live_again(static_cast<std::uint64_t>(round))));
    std::vector<std::unique_ptr<Request>> requests;
    for (unsigned n = 0; n < 40; ++n) {
      requests.push_back(std::make_unique<Request>(IoOp::store, key(n), pattern(200000, n)));
      if (!cards.submit(*requests.back(), "CARD0", n % 2)) requests.pop_back();
      if (n == 20) card->kill();
    }
    for (auto& request : requests) {
      const IoStatus status = request->wait().status;
      EXPECT_TRUE(status == IoStatus::ok || status == IoStatus::disconnected);
    }
    EXPECT_EQ(cards.snapshot().inflight, 0U);
  }
}

}  // namespace
}  // namespace akv::card::test
