// What becomes of requests when cards are slow, late, full, gone or wrong.
#include <gtest/gtest.h>

#include "gateway_transfer_support.hpp"

namespace akv::gateway::test {
namespace {

TEST_F(GatewayTransfer, ShortenedExtendedAndExchangedValuesAreMisses) {
  const auto offset = alloc(5000);
  ASSERT_EQ(put(1, offset, 1000), EntryStatus::ok);
  const card::CardKey key = queue().values.begin()->first;
  Bytes& value = queue().values[key];
  const Bytes good = value;
  for (const std::size_t size : {0U, 63U, 64U, 1000U, 1063U, 1065U}) {
    value.resize(size);
    EXPECT_EQ(get(1, offset, 5000), EntryStatus::miss) << size;
    value = good;
  }
  ASSERT_EQ(put(2, offset, 1000), EntryStatus::ok);
  for (auto& [other, content] : queue().values) {
    if (other != key) value = content;
  }
  EXPECT_EQ(get(1, offset, 5000), EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::miss_envelope_key), 1U);
  EXPECT_EQ(bench.counter(Counter::miss_envelope_short), 2U);
}

TEST_F(GatewayTransfer, CommandsInFlightAreBoundedByNumberAndBytes) {
  queue().hold = true;
  static_cast<void>(alloc(4096));
  send_many(Opcode::get, 1000, 100);
  wait_held(bench.shared.limits.card_commands);
  bench.turn(5);
  EXPECT_EQ(queue().held.size(), bench.shared.limits.card_commands);
  let_go();
  EXPECT_EQ(client.reply()->header.count, 1000U);
  EXPECT_EQ(queue().most_held, bench.shared.limits.card_commands);
}

class GatewayTransferFewBytes : public GatewayTransfer {
 protected:
  GatewayTransferFewBytes() : GatewayTransfer(few()) {}
  static Limits few() {
    Limits limits = quick();
    limits.card_bytes = 10'000;
    return limits;
  }
};

TEST_F(GatewayTransferFewBytes, BytesInFlightAreBounded) {
  queue().hold = true;
  static_cast<void>(alloc(8000));
  send_many(Opcode::get, 20, 8000);
  wait_held(2);
  bench.turn(5);
  EXPECT_EQ(queue().held.size(), 2U) << "the bound may be passed by one command";
  let_go();
  EXPECT_TRUE(client.reply());
}

TEST_F(GatewayTransfer, AFullCardQueueIsWaitedFor) {
  queue().depth = 3;
  queue().hold = true;
  static_cast<void>(alloc(4096));
  send_many(Opcode::put, 50, 100);
  wait_held(3);
  let_go();
  const auto reply = client.reply();
  ASSERT_TRUE(reply);
  for (std::size_t i = 0; i < 50; ++i)
    EXPECT_EQ(reply->entry(i, 4), EntryStatus::ok);
  EXPECT_EQ(queue().values.size(), 50U);
}

TEST_F(GatewayTransfer, ASmallRequestIsNotHeldUpByALargeOne) {
  queue().depth = 4;
  queue().hold = true;
  client.send(frame(Opcode::exists, Bytes(32 * 4096), 4096, 1));
  wait_held(4);
  client.send(frame(Opcode::exists, key_of(1), 1, 2));
  bench.turn();
  std::optional<Reply> reply;
  for (int i = 0; i < 20 && !reply; ++i) {
    queue().answer(0);
    bench.turn(2);
    client.receive();
    if (!client.received.empty()) reply = client.reply();
  }
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->header.request_id, 2U);
}

TEST_F(GatewayTransfer, APrefixStopsAtTheFirstGap) {
  queue().depth = 8;
  const auto offset = alloc(100);
  ASSERT_EQ(put(0, offset, 100), EntryStatus::ok);
  ASSERT_EQ(put(1, offset, 100), EntryStatus::ok);
  Bytes keys;
  for (unsigned i = 0; i < 1000; ++i)
    append(keys, key_of(i));
  const auto reply = client.call(frame(Opcode::exists, keys, 1000, 1, wire::kPrefixOnly));
  EXPECT_EQ(reply->number<std::uint32_t>(0), 2U);
  EXPECT_LT(queue().submitted[card::IoOp::exist], 32) << "keys behind the gap were asked for";
}

TEST_F(GatewayTransfer, CardErrorsAreMissesAndLostPutsWithTheirReason) {
  queue().hold = true;
  const auto offset = alloc(100);
  const std::vector<std::tuple<card::IoStatus, Counter, Counter>> cases{
      {card::IoStatus::timeout, Counter::miss_timeout, Counter::lost_timeout},
      {card::IoStatus::disconnected, Counter::miss_disconnected, Counter::lost_disconnected},
      {card::IoStatus::error, Counter::miss_card_error, Counter::lost_card_error},
      {card::IoStatus::no_space, Counter::miss_card_error, Counter::lost_no_space},
  };
  for (const auto& [status, miss, loss] : cases) {
    const auto misses = bench.counter(miss);
    client.send(request(Opcode::get, 1, offset, 100, 1));
    wait_held(1);
    queue().fail(0, status);
    EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::miss);
    EXPECT_EQ(bench.counter(miss), misses + 1);
    client.send(request(Opcode::put, 1, offset, 100, 1));
    wait_held(1);
    queue().fail(0, status);
    EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::not_stored);
    EXPECT_EQ(bench.counter(loss), 1U);
  }
  client.send(request(Opcode::put, 1, offset, 100, 1));
  wait_held(1);
  queue().fail(0, card::IoStatus::too_large);
  EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::too_large);
  client.send(frame(Opcode::remove, key_of(1), 1, 1));
  wait_held(1);
  queue().fail(0, card::IoStatus::error);  // the look at the envelope
  wait_held(1);
  queue().fail(0, card::IoStatus::error);
  EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::not_stored);
}

TEST_F(GatewayTransfer, WhenTheCardLeavesEverythingThatWaitsIsAnswered) {
  queue().hold = true;
  queue().depth = 2;
  static_cast<void>(alloc(4096));
  send_many(Opcode::get, 100, 100);
  wait_held(2);
  queue().is_ready = false;
  queue().fail(0, card::IoStatus::disconnected);
  queue().fail(0, card::IoStatus::disconnected);
  const auto reply = client.reply();
  ASSERT_TRUE(reply);
  for (std::size_t i = 0; i < 100; ++i)
    EXPECT_EQ(reply->entry(i, 8), EntryStatus::miss);
  EXPECT_EQ(get(1, 0, 100), EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::miss_no_card), 1U) << "a card that is not ready must not be routed to";
}

TEST_F(GatewayTransfer, ABlockOfALateCommandIsInQuarantineUntilTheCardLetsGo) {
  const auto offset = alloc(4096);
  fill(offset, payload_of(4096, 1));
  ASSERT_EQ(put(1, offset, 4096), EntryStatus::ok);
  queue().hold = true;
  client.send(request(Opcode::get, 1, offset, 4096, 2));
  wait_held(1);
  queue().time_out(0);
  EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::late);

  // A client that uses the block all the same: the late answer would spoil whatever it stores.
  queue().hold = false;
  EXPECT_EQ(put(2, offset, 4096), EntryStatus::not_stored);
  EXPECT_EQ(get(1, offset, 100), EntryStatus::late);
  EXPECT_EQ(bench.counter(Counter::lost_quarantined), 1U);
  EXPECT_EQ(bench.counter(Counter::miss_quarantined), 1U);
  EXPECT_EQ(free(offset), FrameStatus::ok);
  EXPECT_EQ(bench.leased(), 4096U) << "the memory is free while a card may write to it";

  queue().release_late();
  EXPECT_TRUE(bench.turn_until([&] { return bench.leased() == 0; }));
  EXPECT_EQ(bench.counter(Counter::late_releases), 1U);
  EXPECT_EQ(alloc(4096), offset);
  EXPECT_EQ(put(2, offset, 4096), EntryStatus::ok);
}

TEST_F(GatewayTransfer, InlineBlocksAreNeverLate) {
  queue().hold = true;
  client.send(frame(Opcode::get, Entries().add(key_of(1), 0, 100, wire::kRegionInline).body, 1, 2));
  wait_held(1);
  queue().time_out(0);
  EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::miss);
  EXPECT_GT(bench.shared.inline_memory->used(), 0U);
  queue().release_late();
  EXPECT_TRUE(bench.turn_until([&] { return bench.shared.inline_memory->used() == 0; }));
}

TEST_F(GatewayTransfer, AFreedBlockStaysUntilItsCommandEnds) {
  const auto offset = alloc(4096);
  queue().hold = true;
  client.send(request(Opcode::put, 1, offset, 4096, 2));
  wait_held(1);
  EXPECT_EQ(free(offset), FrameStatus::ok);
  EXPECT_EQ(free(offset), FrameStatus::no_such_block);
  EXPECT_EQ(bench.leased(), 4096U);
  EXPECT_NE(alloc(4096), offset);
  queue().answer_all();
  EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::ok);
  EXPECT_TRUE(bench.turn_until([&] { return bench.leased() == 4096; }));
}

TEST_F(GatewayTransfer, MemoryOfADeadClientStaysUntilTheCardLetsGo) {
  const auto offset = alloc(8192);
  queue().hold = true;
  client.send(request(Opcode::get, 1, offset, 8192, 2));
  client.send(request(Opcode::put, 2, offset, 8192, 3));
  wait_held(2);
  queue().time_out(0);
  client.hang_up();
  ASSERT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() == 0; }));
  EXPECT_EQ(bench.shared.arena->used(), kArena);
  queue().answer_all();
  bench.turn();
  EXPECT_EQ(bench.shared.arena->used(), kArena) << "a late command still has the memory";
  queue().release_late();
  EXPECT_TRUE(bench.turn_until([&] { return bench.shared.arena->used() == 0; }));
  EXPECT_EQ(bench.leased(), 0U);
}

TEST_F(GatewayTransfer, WhatADeadClientWaitedForIsNotAskedOfTheCard) {
  queue().depth = 2;
  queue().hold = true;
  static_cast<void>(alloc(4096));
  send_many(Opcode::put, 100, 100);
  wait_held(2);
  client.hang_up();
  ASSERT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() == 0; }));
  queue().answer_all();
  queue().hold = false;
  EXPECT_TRUE(bench.turn_until([&] { return bench.worker.idle(); }));
  EXPECT_LE(queue().values.size(), 4U);
  EXPECT_EQ(bench.shared.arena->used(), 0U);
  EXPECT_GE(bench.counter(Counter::lost_unneeded), 96U);
  EXPECT_EQ(bench.counter(Counter::lost_deadline), 0U) << "no card was too slow";
}

class GatewayTransferDeadline : public GatewayTransfer {
 protected:
  GatewayTransferDeadline() : GatewayTransfer(short_deadline()) {}
  static Limits short_deadline() {
    Limits limits = quick();
    limits.io_timeout = 20ms;
    return limits;
  }
};

TEST_F(GatewayTransferDeadline, EntriesThatNoCardWasAskedForAreAnsweredAtTheDeadline) {
  queue().depth = 1;
  queue().hold = true;
  static_cast<void>(alloc(4096));
  Entries entries;
  entries.add(key_of(1), 0, 100).add(key_of(2), 0, 100).add(key_of(3), 0, 100);
  client.send(frame(Opcode::get, entries.body, 3, 1));
  wait_held(1);
  ASSERT_TRUE(bench.turn_until([&] { return bench.counter(Counter::miss_deadline) == 2; }));
  queue().time_out(0);
  const auto reply = client.reply();
  EXPECT_EQ(reply->entry(0, 8), EntryStatus::late);
  EXPECT_EQ(reply->entry(2, 8), EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::miss_timeout), 1U);
}

TEST_F(GatewayTransfer, RandomTrafficWithRandomFaultsKeepsEveryAccount) {
  std::uint32_t state = 1;
  const auto random = [&state](std::uint32_t below) {
    state = state * 1664525U + 1013904223U;
    return (state >> 8U) % below;
  };
  queue().hold = true;
  std::vector<std::uint64_t> offsets;
  for (int i = 0; i < 20; ++i)
    offsets.push_back(alloc(8000));
  std::size_t sent = 0;
  std::size_t answered = 0;
  for (unsigned round = 0; round < 3000; ++round) {
    if (sent - answered < 16) {
      Entries entries;
      const unsigned count = 1 + random(8);
      for (unsigned i = 0; i < count; ++i)
        entries.add(key_of(random(50)), offsets[random(20)], 1 + random(8000));
      client.send(frame(random(2) == 0 ? Opcode::put : Opcode::get, entries.body, count, ++sent));
    }
    bench.turn(1);
    for (std::uint32_t i = random(6); i > 0 && !queue().held.empty(); --i) {
      const std::size_t index = random(static_cast<std::uint32_t>(queue().held.size()));
      const std::uint32_t what = random(10);
      if (what == 0) {
        queue().fail(index, card::IoStatus::error);
      } else if (what == 1) {
        queue().time_out(index);
      } else {
        queue().answer(index);
      }
    }
    if (random(4) == 0 && !queue().late.empty()) queue().release_late();
    bench.turn(1);
    client.receive();
    while (!client.received.empty()) {
      ASSERT_EQ(client.reply()->status(), FrameStatus::ok);
      ++answered;
    }
  }
  let_go();
  while (!queue().late.empty())
    queue().release_late();
  for (; answered < sent; ++answered)
    ASSERT_TRUE(client.reply());
  bench.turn_until([&] { return bench.worker.idle(); });
  for (const std::uint64_t offset : offsets)
    EXPECT_EQ(free(offset), FrameStatus::ok);
  EXPECT_EQ(bench.leased(), 0U) << "a pin was lost";
  EXPECT_EQ(bench.counter(Counter::gets), bench.counter(Counter::hits) + bench.counter(Counter::misses) +
                                              bench.counter(Counter::gets_too_small));
  EXPECT_EQ(bench.counter(Counter::puts), bench.counter(Counter::stored) + bench.counter(Counter::lost_puts));
}

}  // namespace
}  // namespace akv::gateway::test
