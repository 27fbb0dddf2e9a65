// Registered memory that changes, or goes away, at the worst moment of a transfer.
#include "gateway_region_support.hpp"

namespace akv::gateway::test {
namespace {

TEST_F(GatewayRegion, BytesThatChangeAfterTheirChecksumAreAMissLater) {
  queue().hold = true;
  fill(0, payload_of(5000, 3));
  client.send(request(Opcode::put, 1, 0, 5000));
  wait_held(1);
  memory[4999] ^= std::byte{1};
  let_go();
  EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::ok);
  EXPECT_EQ(get(1, 8192, 5000), EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::miss_payload_crc), 1U);
}

// What counts is what the block is when the card is about to get it.
TEST_F(GatewayRegion, BytesThatChangeBeforeTheirChecksumAreStoredAsTheyAreThen) {
  queue().hold = queue().slow = true;
  fill(0, payload_of(5000, 3));
  client.send(request(Opcode::put, 1, 0, 5000));
  wait_held(1);
  fill(0, payload_of(5000, 4));
  queue().read(0);
  queue().slow = false;
  let_go();
  EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::ok);
  ASSERT_EQ(get(1, 8192, 5000), EntryStatus::ok);
  EXPECT_EQ(content(8192, 5000), payload_of(5000, 4));
}

// A queue that sent the bytes without a word would store nothing that anybody takes for a value.
TEST_F(GatewayRegion, WithoutItsChecksumABlockIsNoValue) {
  queue().slow = true;
  fill(0, payload_of(5000, 3));
  EXPECT_EQ(put(1, 0, 5000), EntryStatus::ok);
  EXPECT_EQ(get(1, 8192, 5000), EntryStatus::miss);
  EXPECT_EQ(bench.counter(Counter::miss_envelope_magic), 1U);
}

TEST_F(GatewayRegion, AFileThatShrankBeforeAPutEndsItsSessionAlone) {
  TestClient other(bench);
  ASSERT_TRUE(other.hello(0));
  fill(0, payload_of(kBytes, 1));
  shrink(4096);
  client.send(request(Opcode::put, 1, 0, 10'000));
  expect_ended();
  EXPECT_EQ(bench.counter(Counter::lost_memory_lost), 1U);
  EXPECT_TRUE(queue().values.empty()) << "zeros with a right checksum would be a wrong block";
  EXPECT_EQ(other.call(frame(Opcode::stats, {}, 0, 2))->status(), FrameStatus::ok);
}

// Before its checksum is taken, which would be of zeros, and after.
class GatewayRegionThatShrinks : public GatewayRegion, public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(Before, GatewayRegionThatShrinks, testing::Bool());

TEST_P(GatewayRegionThatShrinks, InTheMiddleOfAPutStoresNothingThatIsFoundLater) {
  queue().hold = queue().slow = true;
  fill(0, payload_of(10'000, 1));
  client.send(request(Opcode::put, 1, 0, 10'000));
  wait_held(1);
  if (!GetParam()) queue().read(0);
  shrink(0);
  if (GetParam()) queue().read(0);
  queue().slow = false;
  let_go();
  expect_ended();
  EXPECT_EQ(queue().values.size(), 1U) << "the card got something";
  EXPECT_EQ(bench.counter(Counter::lost_memory_lost), 1U);
  EXPECT_EQ(bench.counter(Counter::stored), 0U);
  TestClient other(bench);
  ASSERT_TRUE(other.hello(kBytes));
  Bytes lengths;
  append(lengths, std::uint32_t{10'000});
  ASSERT_EQ(other.call(frame(Opcode::alloc, lengths, 1, 5))->status(), FrameStatus::ok);
  const auto reply = other.call(frame(Opcode::get, Entries().add(key_of(1), 0, 10'000).body, 1, 6));
  EXPECT_EQ(reply->entry(0, 8), EntryStatus::miss);
}

TEST_F(GatewayRegion, AFileThatShrinksInTheMiddleOfAGetEndsItsSessionAlone) {
  ASSERT_EQ(put(1, 0, 10'000), EntryStatus::ok);
  queue().hold = true;
  client.send(request(Opcode::get, 1, 20'000, 10'000));
  wait_held(1);
  shrink(20'480);
  let_go();
  expect_ended();
  EXPECT_EQ(queue().corrupt_reports, 0U) << "the card did nothing wrong";
}

// The checksum of the first half is right, and its bytes are gone from the client's file.
TEST_F(GatewayRegion, AFileThatShrinksBetweenTheHalvesOfAGetEndsItsSessionAlone) {
  ASSERT_EQ(put(1, 0, 10'000), EntryStatus::ok);
  TestClient other(bench);
  ASSERT_TRUE(other.hello(0));
  queue().hold = true;
  client.send(request(Opcode::get, 1, 20'480, 10'000));
  wait_held(1);
  queue().arrive(0, 5000);
  const Bytes ask = Entries().add(key_of(1), 0, 10'000, wire::kRegionInline).body;
  other.send(frame(Opcode::get, ask, 1, 5));
  bench.turn(5);
  ASSERT_EQ(queue().held.size(), 1U) << "the other one waits for the same answer";
  shrink(20'480);
  queue().hold = false;
  queue().answer_all();
  expect_ended();
  EXPECT_EQ(other.reply()->entry(0, 8), EntryStatus::ok);
  EXPECT_EQ(queue().corrupt_reports, 0U) << "the card did nothing wrong";
}

// A client that writes where its block arrives changes what it reads itself, and nothing else.
TEST_F(GatewayRegion, WhatAClientChangesWhileItsBlockArrivesIsItsOwnMatter) {
  fill(0, payload_of(10'000, 1));
  ASSERT_EQ(put(1, 0, 10'000), EntryStatus::ok);
  queue().hold = true;
  client.send(request(Opcode::get, 1, 20'480, 10'000));
  wait_held(1);
  TestClient other(bench);
  ASSERT_TRUE(other.hello(0));
  const Bytes ask = Entries().add(key_of(1), 0, 10'000, wire::kRegionInline).body;
  other.send(frame(Opcode::get, ask, 1, 5));
  bench.turn(5);
  queue().arrive(0, 5000);
  memory[20'480] ^= std::byte{1};
  let_go();
  const auto shared = other.reply();
  ASSERT_EQ(shared->entry(0, 8), EntryStatus::ok);
  EXPECT_EQ(Bytes(shared->body.begin() + 8, shared->body.end()), payload_of(10'000, 1));
  EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::ok);
  EXPECT_EQ(bench.counter(Counter::gets_shared), 0U) << "the other one had to ask itself";
}

}  // namespace
}  // namespace akv::gateway::test
