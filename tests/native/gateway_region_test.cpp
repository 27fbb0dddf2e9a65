// Memory that clients register: transfers in it, its limits, and when it is released.
#include <fcntl.h>

#include <memory>
#include <system_error>
#include <vector>

#include "gateway_region_support.hpp"
#include "kv/envelope.hpp"

namespace akv::gateway::test {
namespace {

TEST_F(GatewayRegion, CardsReadAndWriteTheClientsMemory) {
  const Bytes value = payload_of(10'000, 1);
  fill(4097, value);
  ASSERT_EQ(put(1, 4097, 10'000), EntryStatus::ok);
  ASSERT_EQ(get(1, 30'001, 20'000), EntryStatus::ok);
  EXPECT_EQ(content(30'001, 10'000), value);
  EXPECT_EQ(content(40'001, 1), Bytes(1)) << "nothing behind the block was written";
  ASSERT_EQ(queue().values.begin()->second.size(), kv::kEnvelopeBytes + 10'000);
}

TEST_F(GatewayRegion, ValuesInSegmentsAndBothMemoriesInOneFrame) {
  queue().max_value = 4096 + 64;
  const Bytes value = payload_of(20'000, 2);
  fill(0, value);
  Bytes lengths;
  append(lengths, std::uint32_t{20'000});
  const auto offset = client.call(frame(Opcode::alloc, lengths, 1, 5))->number<std::uint64_t>(0);
  ASSERT_EQ(put(1, 0, 20'000), EntryStatus::ok);
  Entries both;
  both.add(key_of(1), 20'000, 20'000, 1).add(key_of(1), offset, 20'000, wire::kRegionArena);
  const auto reply = client.call(frame(Opcode::get, both.body, 2, 6));
  EXPECT_EQ(reply->entry(0, 8), EntryStatus::ok);
  EXPECT_EQ(reply->entry(1, 8), EntryStatus::ok);
  EXPECT_EQ(content(20'000, 20'000), value);
}

TEST_F(GatewayRegion, OnlyWhatIsInsideCanBeNamed) {
  EXPECT_EQ(put(1, kBytes - 1, 1), EntryStatus::ok);
  EXPECT_EQ(put(1, kBytes - 1, 2), EntryStatus::no_such_block);
  EXPECT_EQ(put(1, ~std::uint64_t{0}, 2), EntryStatus::no_such_block);
  EXPECT_EQ(get(1, kBytes, 1), EntryStatus::no_such_block);
  EXPECT_EQ(get(1, 0, 1, 2), EntryStatus::no_such_block);
  EXPECT_EQ(get(1, 0, 1, 0x7FFF), EntryStatus::no_such_block);
  EXPECT_EQ(bench.counter(Counter::no_such_block), 5U);
}

TEST_F(GatewayRegion, UnregisteringWaitsForTheCards) {
  ASSERT_EQ(put(1, 0, 100), EntryStatus::ok);
  queue().hold = true;
  client.send(request(Opcode::get, 1, 0, 4096));
  wait_held(1);
  client.send(unregister_frame(1, 77));
  bench.turn(5);
  client.receive();
  EXPECT_TRUE(client.received.empty()) << "the card may still write";
  EXPECT_EQ(client.call(request(Opcode::get, 1, 8192, 100, 10))->entry(0, 8), EntryStatus::no_such_block);
  queue().answer(0);
  EXPECT_EQ(client.reply()->header.request_id, 9U);
  const auto done = client.reply();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->header.request_id, 77U);
  EXPECT_EQ(done->status(), FrameStatus::ok);
  bench.turn();
  EXPECT_EQ(bench.shared.regions->used(), 0U);
  EXPECT_EQ(client.call(unregister_frame(1))->status(), FrameStatus::no_such_block);
  EXPECT_EQ(enroll(file.get(), 4096, 4096)->number<std::uint16_t>(0), 1U) << "the number is free again";
}

TEST_F(GatewayRegion, ALateCardsMemoryIsReleasedByANotice) {
  ASSERT_EQ(put(1, 0, 5000), EntryStatus::ok);
  queue().hold = true;
  client.send(request(Opcode::get, 1, 8192, 5000, 42));
  wait_held(1);
  queue().time_out(0);
  EXPECT_EQ(client.reply()->entry(0, 8), EntryStatus::late);
  queue().hold = false;
  EXPECT_EQ(get(1, 8192 + 4999, 1), EntryStatus::miss) << "a card may still write there";
  EXPECT_EQ(put(2, 8192, 1), EntryStatus::not_stored);
  EXPECT_EQ(get(1, 8192 + 5000, 5000), EntryStatus::ok) << "the bytes beside are free";
  queue().release_late();
  const auto notice = client.reply();
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->header.opcode, static_cast<std::uint16_t>(Opcode::released) | wire::kReply);
  EXPECT_EQ(notice->header.request_id, 42U);
  EXPECT_EQ(get(1, 8192, 5000), EntryStatus::ok);
}

// The card can only read there: the client's next bytes, which are not what the late PUT's checksum is of.
TEST_F(GatewayRegion, ALatePutsMemoryIsTheClientsAgainAtOnce) {
  queue().hold = true;
  fill(0, payload_of(5000, 1));
  client.send(request(Opcode::put, 1, 0, 5000));
  wait_held(1);
  queue().time_out(0);
  EXPECT_EQ(client.reply()->entry(0, 4), EntryStatus::not_stored);
  queue().hold = false;
  fill(0, payload_of(5000, 2));
  EXPECT_EQ(put(2, 0, 5000), EntryStatus::ok);
  EXPECT_EQ(get(2, 0, 5000), EntryStatus::ok);
  EXPECT_EQ(content(0, 5000), payload_of(5000, 2));
  client.send(unregister_frame(1, 77));
  bench.turn(5);
  client.receive();
  EXPECT_TRUE(client.received.empty()) << "it stays mapped while the card may read";
  queue().release_late();
  const auto done = client.reply();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->header.request_id, 77U) << "nothing is told of bytes that were not lent";
  EXPECT_EQ(done->header.opcode, static_cast<std::uint16_t>(Opcode::unregister_region) | wire::kReply);
  ASSERT_EQ(enroll(file.get(), 0, kBytes)->number<std::uint16_t>(0), 1U);
  EXPECT_EQ(get(1, 8192, 5000), EntryStatus::miss) << "what the card stored of changed bytes";
  EXPECT_EQ(bench.counter(Counter::miss_payload_crc), 1U);
}

TEST_F(GatewayRegion, AClientThatDiesLeavesItsMemoryMappedUntilTheCardLetsGo) {
  ASSERT_EQ(put(1, 0, 5000), EntryStatus::ok);
  queue().hold = true;
  client.send(request(Opcode::get, 1, 8192, 5000));
  wait_held(1);
  client.hang_up();
  ASSERT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() == 0; }));
  EXPECT_EQ(bench.shared.regions->used(), kBytes);
  queue().time_out(0);
  bench.turn();
  EXPECT_EQ(bench.shared.regions->used(), kBytes);
  queue().release_late();
  bench.turn();
  EXPECT_EQ(bench.shared.regions->used(), 0U);
}

TEST_F(GatewayRegion, LimitsAreKept) {
  EXPECT_EQ(enroll(file.get(), 0, 4 * kBytes)->status(), FrameStatus::no_memory);
  EXPECT_EQ(enroll(file.get(), 0, kBytes)->number<std::uint16_t>(0), 2U);
  EXPECT_EQ(enroll(file.get(), 0, kBytes)->number<std::uint16_t>(0), 3U);
  EXPECT_EQ(enroll(file.get(), 0, 4096)->status(), FrameStatus::no_memory);
  EXPECT_EQ(bench.shared.regions->used(), 3 * kBytes);
  EXPECT_EQ(client.call(unregister_frame(2))->status(), FrameStatus::ok);
  EXPECT_EQ(bench.shared.regions->used(), 2 * kBytes);
  EXPECT_EQ(enroll(file.get(), 0, 4096)->number<std::uint16_t>(0), 2U);
  EXPECT_EQ(bench.counter(Counter::regions_refused), 2U);
}

TEST_F(GatewayRegion, WhereNoMoreCanBeMappedTheFileIsNotBlamed) {
  std::vector<std::unique_ptr<GuardedMapping>> others;
  try {
    for (;;)
      others.push_back(std::make_unique<GuardedMapping>(file.get(), 0, 4096));
  } catch (const std::system_error& full) {
    ASSERT_EQ(full.code(), std::errc::no_space_on_device);
  }
  EXPECT_EQ(enroll(file.get(), 0, 4096)->status(), FrameStatus::no_memory);
  EXPECT_EQ(bench.shared.regions->used(), kBytes);
  others.pop_back();
  EXPECT_EQ(enroll(file.get(), 0, 4096)->number<std::uint16_t>(0), 2U);
}

TEST_F(GatewayRegion, OnlyMemoryThatCanBeMappedIsTaken) {
  const UniqueFd disk(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const UniqueFd sealed = memfd(kBytes);
  ASSERT_EQ(::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  const UniqueFd read_only(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  int pair[2];
  ASSERT_EQ(::pipe2(pair, O_CLOEXEC), 0);
  const UniqueFd reader(pair[0]);
  const UniqueFd writer(pair[1]);
  for (const int fd : {disk.get(), sealed.get(), read_only.get(), reader.get(), client.fd()}) {
    const auto reply = enroll(fd, 0, 4096);
    EXPECT_EQ(reply->status(), FrameStatus::bad_request) << reply->text();
  }
  EXPECT_EQ(enroll(file.get(), 0, kBytes + 1)->status(), FrameStatus::bad_request);
  EXPECT_EQ(enroll(file.get(), 1, 4096)->status(), FrameStatus::bad_request);
  EXPECT_EQ(enroll(file.get(), kBytes, 0)->status(), FrameStatus::bad_request);
  EXPECT_EQ(enroll(file.get(), ~std::uint64_t{4095}, 8192)->status(), FrameStatus::bad_request);
  EXPECT_EQ(client.call(register_frame(0, 4096))->status(), FrameStatus::bad_request) << "no descriptor";
  EXPECT_EQ(bench.shared.regions->used(), kBytes);
  EXPECT_EQ(put(1, 0, 100), EntryStatus::ok) << "the session goes on";
}

TEST_F(GatewayRegion, DescriptorsWithoutRegisterEndTheSession) {
  const Bytes stats = frame(Opcode::stats, {}, 0, 5);
  client.send_with({file.get(), file.get(), file.get(), file.get()}, stats);
  const auto first = client.reply();
  EXPECT_EQ(first->status(), FrameStatus::ok) << first->text();
  client.send_with({file.get()}, stats);
  EXPECT_EQ(client.reply()->header.opcode, wire::kErrorOpcode);
  EXPECT_TRUE(client.closed());
}

TEST(GatewayRegions, MustBeGranted) {
  Bench bench(quick_regions());
  const UniqueFd file = memfd(kBytes);
  TestClient remote(bench, false);
  const Bytes wish = hello_body(kBytes, "default", wire::kFeatureRegions);
  const auto welcome = remote.call(frame(Opcode::hello, wish, 0, 1));
  EXPECT_EQ(welcome->body.size(), wire::kWelcomeBytes);
  TestClient plain(bench);
  ASSERT_EQ(plain.hello(kBytes)->body.size(), wire::kWelcomeBytes);
  plain.send_with({file.get()}, register_frame(0, kBytes));
  EXPECT_EQ(plain.reply()->status(), FrameStatus::unsupported);
  const auto entry = Entries().add(key_of(1), 0, 100, 1).body;
  EXPECT_EQ(plain.call(frame(Opcode::get, entry, 1, 3))->status(), FrameStatus::bad_request);
  EXPECT_EQ(plain.call(frame(Opcode::released, {}, 0, 4))->status(), FrameStatus::unsupported);
}

}  // namespace
}  // namespace akv::gateway::test
