#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "card_support.hpp"

namespace akv::card::test {
namespace {

CardSpec spec(const std::string& serial) {
  return {serial, "nqn.2024-01.io.akv:" + serial, "", {{"tcp", "127.0.0.1", "4420"}}};
}

struct MemoryCards : ::testing::Test {
  MemoryCards() : set(make_memory_card_set(workers.reactors(), {4096, 1024, 4})) {
    set->apply({spec("A"), spec("B")});
  }
  ~MemoryCards() override { EXPECT_TRUE(set->stop(std::chrono::seconds(5))); }

  IoResult run(std::size_t worker, const std::string& serial, Request& request) {
    EXPECT_TRUE(workers.call(worker, [&] { return set->queue(worker, serial)->submit(request); }));
    return request.wait();
  }

  WorkerThreads workers{2};
  std::unique_ptr<CardSet> set;
};

TEST_F(MemoryCards, ValuesAreSharedByWorkersAndApartByCard) {
  Request store(IoOp::store, key(1), pattern(100, 7));
  EXPECT_EQ(run(0, "A", store).status, IoStatus::ok);
  Request retrieve(IoOp::retrieve, key(1), std::vector<std::byte>(60));
  const IoResult result = run(1, "A", retrieve);
  EXPECT_EQ(result.status, IoStatus::ok);
  EXPECT_EQ(result.value_size, 100U);
  EXPECT_EQ(std::memcmp(retrieve.bytes.data(), store.bytes.data(), 60), 0);
  Request elsewhere(IoOp::exist, key(1));
  EXPECT_EQ(run(1, "B", elsewhere).status, IoStatus::not_found);
}

TEST_F(MemoryCards, RemovesAndReportsWhatIsGone) {
  Request store(IoOp::store, key(2), pattern(10, 1));
  run(0, "A", store);
  Request exist(IoOp::exist, key(2));
  EXPECT_EQ(run(0, "A", exist).status, IoStatus::ok);
  Request remove(IoOp::remove, key(2));
  EXPECT_EQ(run(0, "A", remove).status, IoStatus::ok);
  Request again(IoOp::remove, key(2));
  EXPECT_EQ(run(0, "A", again).status, IoStatus::not_found);
}

TEST_F(MemoryCards, TheOldestValuesLeaveWhenTheCardIsFull) {
  for (unsigned n = 0; n < 5; ++n) {
    Request store(IoOp::store, key(n), pattern(1000, n));
    EXPECT_EQ(run(0, "A", store).status, IoStatus::ok);
  }
  Request oldest(IoOp::exist, key(0));
  Request newest(IoOp::exist, key(4));
  EXPECT_EQ(run(0, "A", oldest).status, IoStatus::not_found);
  EXPECT_EQ(run(0, "A", newest).status, IoStatus::ok);
  Request big(IoOp::store, key(9), pattern(1025, 1));
  EXPECT_EQ(run(0, "A", big).status, IoStatus::too_large);
}

TEST_F(MemoryCards, AFullQueueRefuses) {
  std::vector<std::unique_ptr<Request>> requests;
  for (unsigned n = 0; n < 5; ++n)
    requests.push_back(std::make_unique<Request>(IoOp::exist, key(n)));
  const auto accepted = workers.call(0, [&] {
    std::size_t count = 0;
    for (auto& request : requests)
      count += set->queue(0, "A")->submit(*request) ? 1U : 0U;
    return count;
  });
  EXPECT_EQ(accepted, 4U);
  for (std::size_t n = 0; n < accepted; ++n)
    EXPECT_EQ(requests[n]->wait().status, IoStatus::not_found);
}

TEST_F(MemoryCards, ARemovedCardIsGoneAndTheOtherKeepsItsValues) {
  Request store(IoOp::store, key(1), pattern(10, 1));
  run(0, "B", store);
  set->apply({spec("B")});
  EXPECT_TRUE(workers.call(0, [&] { return set->queue(0, "A") == nullptr; }));
  Request exist(IoOp::exist, key(1));
  EXPECT_EQ(run(0, "B", exist).status, IoStatus::ok);
  ASSERT_EQ(set->status().size(), 1U);
  EXPECT_EQ(set->status()[0].stores, 1U);
}

TEST_F(MemoryCards, BadSpecsChangeNothing) {
  EXPECT_THROW(set->apply({spec("C"), spec("C")}), std::invalid_argument);
  EXPECT_THROW(set->apply({spec("")}), std::invalid_argument);
  EXPECT_EQ(set->status().size(), 2U);
}

}  // namespace
}  // namespace akv::card::test
