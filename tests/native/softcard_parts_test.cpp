// Small parts of the card: arguments, the memory budget, transfers, controller state.
#include <gtest/gtest.h>

#include <string>

#include "softcard/address.hpp"
#include "softcard/controller.hpp"
#include "softcard/options.hpp"
#include "softcard/transfers.hpp"
#include "softcard/tx_queue.hpp"

namespace akv::softcard {
namespace {

TEST(Options, Bytes) {
  EXPECT_EQ(parse_bytes("capacity", "1"), 1U);
  EXPECT_EQ(parse_bytes("capacity", "512M"), 512U << 20U);
  EXPECT_EQ(parse_bytes("capacity", "4g"), std::uint64_t{4} << 30U);
  for (const auto* text : {"", "0", "K", "-1", "1KB", "1.5G", " 1", "99999999999T", "18446744073709551616"}) {
    EXPECT_THROW(static_cast<void>(parse_bytes("capacity", text)), std::invalid_argument) << text;
  }
}

TEST(Options, Uuids) {
  const std::string text = "0f8fad5b-d9cb-469f-a165-70867728950e";
  EXPECT_EQ(uuid_text(parse_uuid(text)), text);
  for (const auto* bad : {"", "0f8fad5b-d9cb-469f-a165-70867728950", "0f8fad5b+d9cb-469f-a165-70867728950e",
                          "0g8fad5b-d9cb-469f-a165-70867728950e", "0f8fad5bd9cb-469f-a165-70867728950e-"}) {
    EXPECT_THROW(static_cast<void>(parse_uuid(bad)), std::invalid_argument) << bad;
  }
  EXPECT_EQ(derive_uuid("nqn.a", "L0P0"), derive_uuid("nqn.a", "L0P0"));
  EXPECT_NE(derive_uuid("nqn.a", "L0P0"), derive_uuid("nqn.a", "L0P1"));
  EXPECT_NE(derive_uuid("nqn.aL", "0P0"), derive_uuid("nqn.a", "L0P0"));
  EXPECT_EQ(uuid_text(derive_uuid("nqn.a", "L0P0"))[14], '8');
}

TEST(Options, Endpoints) {
  EXPECT_EQ(parse_endpoint("127.0.0.11:4420").text(), "127.0.0.11:4420");
  EXPECT_EQ(parse_endpoint("[::1]:0").text(), "[::1]:0");
  EXPECT_TRUE(is_loopback(parse_endpoint("127.9.8.7:1")));
  EXPECT_FALSE(is_loopback(parse_endpoint("0.0.0.0:1")));
  for (const auto* bad : {"", ":1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x", "::1:4420",
                          "[127.0.0.1]:1", "host:1", "127.0.0.1:-1"}) {
    EXPECT_THROW(static_cast<void>(parse_endpoint(bad)), std::invalid_argument) << bad;
  }
}

// Also what is short to send, and answers without data.
TEST(TxQueue, CountsTheMemoryThatAnswersHold) {
  TxQueue queue;
  for (int i = 0; i < 1000; ++i)
    queue.push(nvme::CapsuleResp{}, {});
  EXPECT_GE(queue.held(), 1000 * 168U);
  const auto before = queue.held();
  const auto hold = allocate_bytes(4096);
  queue.push(nvme::DataPdu{}, {}, {.hold = hold, .bytes = {hold.get(), 1}, .memory = 4096});
  EXPECT_GE(queue.held(), before + 4096);
}

struct Waiter final : BudgetWaiter {
  bool use_budget() override {
    ++turns;
    return done;
  }
  int turns{0};
  bool done{true};
};

TEST(ReceiveBudget, OneStoreOfEachConnectionIsAlwaysServed) {
  ReceiveBudget budget(1000, [] {});
  EXPECT_TRUE(budget.take(1000, 0));
  EXPECT_TRUE(budget.take(500, 0)) << "another connection's first";
  EXPECT_FALSE(budget.take(1, 500));
  budget.give_back(1500);
  EXPECT_TRUE(budget.take(100, 0));
  EXPECT_TRUE(budget.take(150, 100)) << "a quarter of the limit";
  EXPECT_FALSE(budget.take(1, 250));
  EXPECT_EQ(budget.used(), 250U);
}

TEST(ReceiveBudget, EveryoneInTheLineGetsATurn) {
  int freed = 0;
  ReceiveBudget budget(1000, [&] { ++freed; });
  Waiter first;
  Waiter second;
  first.done = false;
  budget.join_line(first);
  budget.join_line(second);
  ASSERT_TRUE(budget.take(10, 0));
  budget.give_back(10);
  EXPECT_EQ(freed, 1);
  budget.serve();
  budget.serve();
  EXPECT_EQ(first.turns, 2);
  EXPECT_EQ(second.turns, 1) << "it left the line";
}

nvme::KvCommand store_of(std::uint32_t size) {
  nvme::KvCommand command;
  command.opcode = nvme::KvOpcode::store;
  command.size = size;
  return command;
}

TEST(Transfers, WaitInOrderAndGiveTheirMemoryBack) {
  ReceiveBudget budget(400, [] {});
  {
    TransferTable transfers(budget);
    const auto first = transfers.start(1, store_of(100));
    ASSERT_TRUE(first);
    EXPECT_FALSE(transfers.start(2, store_of(50)));
    EXPECT_FALSE(transfers.start(3, store_of(60)));
    EXPECT_TRUE(transfers.uses(3));
    EXPECT_EQ(transfers.size(), 3U);
    EXPECT_FALSE(transfers.start_waiting());
    EXPECT_EQ(transfers.finish(*first).cid, 1);
    EXPECT_FALSE(transfers.start_waiting()) << "its memory is in use until it is given back";
    transfers.give_back(100);
    const auto second = transfers.start_waiting();
    ASSERT_TRUE(second);
    EXPECT_EQ(transfers.find(*second)->cid, 2);
    EXPECT_TRUE(transfers.cancel_waiting(3));
    EXPECT_FALSE(transfers.cancel_waiting(2)) << "it was asked for";
    EXPECT_EQ(transfers.find(99), nullptr);
    EXPECT_EQ(budget.used(), 50U);
  }
  EXPECT_EQ(budget.used(), 0U);
}

TEST(Transfers, OverdueOnceAskedForAndLate) {
  ReceiveBudget budget(400, [] {});
  TransferTable transfers(budget);
  const auto tag = transfers.start(1, store_of(10));
  const TimePoint now{std::chrono::hours(1)};
  EXPECT_FALSE(transfers.overdue(now));
  transfers.find(*tag)->deadline = now;
  EXPECT_FALSE(transfers.overdue(now));
  EXPECT_TRUE(transfers.overdue(now + std::chrono::milliseconds(1)));
}

class ControllerState : public ::testing::Test {
 protected:
  CardConfig config_;
  nvme::ConnectData host_;
  Controller controller_{7, config_, host_, nullptr};
};

TEST_F(ControllerState, EnableShutdownAndReset) {
  constexpr std::uint32_t enable = nvme::Cc::kEnable | nvme::Cc::kEntrySizes | nvme::Cc::kCssAllCommandSets;
  EXPECT_EQ(controller_.write_cc(enable), Controller::CcChange::enabled);
  EXPECT_TRUE(controller_.csts().ready());
  EXPECT_TRUE(controller_.hold_async_event(1));
  EXPECT_EQ(controller_.write_cc(enable), Controller::CcChange::none);
  EXPECT_EQ(controller_.write_cc(enable | nvme::Cc::kShutdownNormal), Controller::CcChange::shut_down);
  EXPECT_TRUE(controller_.csts().shutdown_complete());
  EXPECT_EQ(controller_.write_cc(0), Controller::CcChange::reset);
  EXPECT_EQ(controller_.csts().raw, 0U);
  EXPECT_FALSE(controller_.drop_async_event(1)) << "a reset forgets what was held";
}

TEST_F(ControllerState, ConfigurationsItCannotServeAreFatal) {
  constexpr std::uint32_t sizes = nvme::Cc::kEntrySizes;
  for (const auto cc : {nvme::Cc::kEnable, nvme::Cc::kEnable | sizes,  // the NVM command set alone
                        nvme::Cc::kEnable | nvme::Cc::kCssAllCommandSets,
                        nvme::Cc::kEnable | sizes | nvme::Cc::kCssAllCommandSets | (1U << 7U)}) {
    static_cast<void>(controller_.write_cc(0));
    static_cast<void>(controller_.write_cc(cc));
    EXPECT_TRUE(controller_.csts().fatal());
    EXPECT_FALSE(controller_.csts().ready());
  }
}

TEST_F(ControllerState, KeepAliveRoundsUpToItsUnit) {
  const TimePoint start{std::chrono::hours(1)};
  EXPECT_FALSE(controller_.keep_alive_expired(start + std::chrono::hours(9)));
  controller_.set_keep_alive(101, start);
  EXPECT_EQ(controller_.kato_ms(), 200U);
  EXPECT_FALSE(controller_.keep_alive_expired(start + std::chrono::milliseconds(200)));
  EXPECT_TRUE(controller_.keep_alive_expired(start + std::chrono::milliseconds(201)));
  controller_.alive(start + std::chrono::milliseconds(150));
  EXPECT_FALSE(controller_.keep_alive_expired(start + std::chrono::milliseconds(300)));
  controller_.set_keep_alive(0xFFFFFFFF, start);
  EXPECT_EQ(controller_.kato_ms(), 0xFFFFFFFFU);
  controller_.set_keep_alive(0, start);
  EXPECT_FALSE(controller_.keep_alive_expired(start + std::chrono::hours(2000)));
}

}  // namespace
}  // namespace akv::softcard
