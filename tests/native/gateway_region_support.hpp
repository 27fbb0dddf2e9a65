// A session with memory that its client registered, mapped here as the client has it mapped.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gateway_support.hpp"

namespace akv::gateway::test {

using wire::EntryStatus;
using wire::FrameStatus;
using wire::Opcode;

inline constexpr std::size_t kBytes = 64U << 10U;

inline UniqueFd memfd(std::size_t bytes) {
  UniqueFd fd(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

inline Bytes register_frame(std::uint64_t offset, std::uint64_t length, std::uint64_t id = 2) {
  Bytes body;
  append(body, offset);
  append(body, length);
  return frame(Opcode::register_region, body, 1, id);
}

inline Bytes unregister_frame(std::uint16_t number, std::uint64_t id = 3) {
  Bytes body;
  append(body, number);
  body.resize(wire::kRegionBytes);
  return frame(Opcode::unregister_region, body, 1, id);
}

inline Limits quick_regions() {
  Limits limits;
  limits.tick = 2ms;
  limits.max_regions = 3;
  limits.region_bytes = 4 * kBytes;
  return limits;
}

// A session with one region, mapped here as the client has it mapped.
class GatewayRegion : public testing::Test {
 protected:
  void SetUp() override {
    const auto welcome =
        client.call(frame(Opcode::hello, hello_body(kBytes, "default", wire::kFeatureRegions), 0, 1));
    ASSERT_TRUE(welcome);
    ASSERT_EQ(welcome->body.size(), wire::kWelcomeBytes + wire::kWelcomeRegionsBytes);
    EXPECT_EQ(welcome->number<std::uint32_t>(4), wire::kFeatureSharedMemory | wire::kFeatureRegions);
    EXPECT_EQ(welcome->number<std::uint32_t>(80), 3U);
    EXPECT_EQ(welcome->number<std::uint64_t>(88), 4 * kBytes);
    ASSERT_EQ(enroll(file.get(), 0, kBytes)->number<std::uint16_t>(0), 1U);
    void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    memory = {static_cast<std::byte*>(mapped), kBytes};
  }
  void TearDown() override {
    ::munmap(memory.data(), memory.size());
    client.hang_up();
    let_go();
    while (!queue().late.empty())
      queue().release_late();
    EXPECT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() == 0; }));
    bench.turn();
    EXPECT_EQ(bench.shared.regions->used(), 0U) << "no region is left";
  }

  ScriptedQueue& queue() { return bench.queue(); }
  std::optional<Reply> enroll(int fd, std::uint64_t offset, std::uint64_t length) {
    client.send_with({fd}, register_frame(offset, length));
    return client.reply();
  }
  static Bytes request(Opcode opcode, unsigned key, std::uint64_t offset, std::uint32_t length,
                       std::uint64_t id = 9, std::uint16_t region = 1) {
    return frame(opcode, Entries().add(key_of(key), offset, length, region).body, 1, id);
  }
  EntryStatus put(unsigned key, std::uint64_t offset, std::uint32_t length, std::uint16_t region = 1) {
    return client.call(request(Opcode::put, key, offset, length, 9, region))->entry(0, 4);
  }
  EntryStatus get(unsigned key, std::uint64_t offset, std::uint32_t length, std::uint16_t region = 1) {
    return client.call(request(Opcode::get, key, offset, length, 9, region))->entry(0, 8);
  }
  void fill(std::uint64_t offset, const Bytes& with) {
    std::ranges::copy(with, memory.subspan(offset).begin());
  }
  Bytes content(std::uint64_t offset, std::size_t length) {
    const auto part = memory.subspan(offset, length);
    return {part.begin(), part.end()};
  }
  void wait_held(std::size_t count) {
    ASSERT_TRUE(bench.turn_until([&] { return queue().held.size() == count; }));
  }
  void let_go() {
    queue().hold = false;
    queue().answer_all();
  }
  void shrink(std::size_t bytes) { ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0); }
  // The session ends with an ERROR that says why, and another one works.
  void expect_ended() {
    const auto error = client.reply();
    ASSERT_TRUE(error);
    EXPECT_EQ(error->header.opcode, wire::kErrorOpcode);
    EXPECT_NE(error->text().find("shorter than it was registered"), std::string::npos) << error->text();
    EXPECT_TRUE(client.closed());
    EXPECT_EQ(bench.counter(Counter::regions_broken), 1U);
  }

  Bench bench{quick_regions()};
  TestClient client{bench};
  UniqueFd file = memfd(kBytes);
  std::span<std::byte> memory;
};

}  // namespace akv::gateway::test
