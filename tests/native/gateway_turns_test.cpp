#include "gateway/turns.hpp"

#include <gtest/gtest.h>

#include "gateway_support.hpp"

namespace akv::gateway::test {
namespace {

std::shared_ptr<Batch> batch_of(std::uint64_t session, unsigned space = 0) {
  auto keyspace = std::make_shared<Keyspace>(Keyspace{.keys = kv::KeyDeriver("n", {}, 1),
                                                      .space = {},
                                                      .namespace_id = 0,
                                                      .max_value = 0,
                                                      .longest = nullptr});
  keyspace->space[0] = static_cast<std::byte>(space);
  auto batch = std::make_shared<Batch>();
  batch->session_id = session;
  batch->keyspace = keyspace;
  return batch;
}

// Serves `count` commands of one cost; how many each session had.
std::map<std::uint64_t, int> serve(Turns& turns, int count,
                                   const std::map<std::uint64_t, std::int64_t>& costs) {
  std::map<std::uint64_t, int> served;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t session = turns.current()->session_id;
    ++served[session];
    turns.charge(costs.at(session));
  }
  return served;
}

TEST(GatewayTurns, ASessionWithManyBatchesHasOneShare) {
  Turns turns;
  for (int i = 0; i < 31; ++i)
    turns.add(batch_of(1));
  turns.add(batch_of(2));
  auto served = serve(turns, 1600, {{1, 4096}, {2, 4096}});
  EXPECT_EQ(served[1], 800);
  EXPECT_EQ(served[2], 800);
}

TEST(GatewayTurns, SharesAreOfBytesNotOfCommands) {
  Turns turns;
  turns.add(batch_of(1));
  turns.add(batch_of(2));
  auto served = serve(turns, 66'000, {{1, 1 << 20U}, {2, 16 << 10U}});
  const double ratio = static_cast<double>(served[2]) / served[1];
  EXPECT_NEAR(ratio, 64.0, 2.0);
}

TEST(GatewayTurns, ANamespaceWithManySessionsHasOneShare) {
  Turns turns;
  for (std::uint64_t session = 1; session <= 9; ++session)
    turns.add(batch_of(session, 1));
  turns.add(batch_of(10, 2));
  std::map<std::uint64_t, std::int64_t> costs;
  for (std::uint64_t session = 1; session <= 10; ++session)
    costs[session] = 4096;
  auto served = serve(turns, 3600, costs);
  EXPECT_NEAR(served[10], 1800, 16);
  EXPECT_NEAR(served[1], 200, 16);
}

TEST(GatewayTurns, WhoComesLaterWaitsForAQuantumOfEachOther) {
  Turns turns;
  for (std::uint64_t session = 1; session <= 4; ++session) {
    for (int i = 0; i < 8; ++i)
      turns.add(batch_of(session));
  }
  const std::map<std::uint64_t, std::int64_t> costs{{1, 4096}, {2, 4096}, {3, 4096}, {4, 4096}, {5, 4096}};
  serve(turns, 1000, costs);
  turns.add(batch_of(5));
  int waited = 0;
  while (turns.current()->session_id != 5) {
    turns.charge(4096);
    ++waited;
  }
  EXPECT_LE(waited, 4 * (Turns::kQuantum / 4096 + 1));
}

TEST(GatewayTurns, BatchesOfASessionTakeTurnsOneCommandEach) {
  Turns turns;
  const auto first = batch_of(1);
  const auto second = batch_of(1);
  turns.add(first);
  turns.add(second);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(turns.current(), i % 2 == 0 ? first : second);
    turns.charge(4096);
  }
  turns.retire();
  EXPECT_EQ(turns.all(), std::vector{second});
  turns.retire();
  EXPECT_TRUE(turns.empty());
}

}  // namespace
}  // namespace akv::gateway::test
