// What tests of the gateway's transfers share: a client that has mapped its memory.
#pragma once

#include <sys/mman.h>

#include "gateway_support.hpp"

namespace akv::gateway::test {

using wire::EntryStatus;
using wire::FrameStatus;
using wire::Opcode;

// A session with shared memory, mapped as a client maps it.
class GatewayTransfer : public testing::Test {
 protected:
  explicit GatewayTransfer(Limits limits = quick(), std::uint64_t cache = 0, bool lends = false)
      : bench(limits, {}, std::uint64_t{1} << 20U, cache, lends) {}

  static Limits quick() {
    Limits limits;
    limits.tick = 2ms;
    return limits;
  }
  void SetUp() override {
    ASSERT_TRUE(client.hello(kArena, "default", wire::kFeatureBorrowing));
    void* const mapped =
        ::mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_SHARED, client.memory_fd.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    memory = {static_cast<std::byte*>(mapped), kArena};
  }
  void TearDown() override {
    ::munmap(memory.data(), memory.size());
    // Cards let go of everything before lanes may be destroyed.
    queue().hold = false;
    queue().answer_all();
    while (!queue().late.empty())
      queue().release_late();
    bench.turn();
  }

  ScriptedQueue& queue() { return bench.queue(); }
  std::uint64_t alloc(std::uint32_t length) {
    Bytes body;
    append(body, length);
    return client.call(frame(Opcode::alloc, body, 1, 1000))->number<std::uint64_t>(0);
  }
  FrameStatus free(std::uint64_t offset) {
    Bytes body;
    append(body, offset);
    return client.call(frame(Opcode::free, body, 1, 1001))->status();
  }
  Bytes request(Opcode opcode, unsigned key, std::uint64_t offset, std::uint32_t length, std::uint64_t id) {
    return frame(opcode, Entries().add(key_of(key), offset, length).body, 1, id);
  }
  EntryStatus put(unsigned key, std::uint64_t offset, std::uint32_t length) {
    return client.call(request(Opcode::put, key, offset, length, 1))->entry(0, 4);
  }
  EntryStatus get(unsigned key, std::uint64_t offset, std::uint32_t length) {
    return client.call(request(Opcode::get, key, offset, length, 1))->entry(0, 8);
  }
  void fill(std::uint64_t offset, const Bytes& with) {
    std::ranges::copy(with, memory.subspan(offset).begin());
  }
  Bytes content(std::uint64_t offset, std::size_t length) {
    const auto part = memory.subspan(offset, length);
    return {part.begin(), part.end()};
  }
  // Sends one request for keys 0 to count - 1, all with one place.
  void send_many(Opcode opcode, unsigned count, std::uint32_t length) {
    Entries entries;
    for (unsigned i = 0; i < count; ++i)
      entries.add(key_of(i), 0, length);
    client.send(frame(opcode, entries.body, count, 1));
  }
  // Cards answer what they hold, and from now on at once.
  void let_go() {
    queue().hold = false;
    queue().answer_all();
  }
  void wait_held(std::size_t count) {
    ASSERT_TRUE(bench.turn_until([&] { return queue().held.size() == count; }));
  }

  static constexpr std::size_t kArena = 512U << 10U;
  Bench bench;
  TestClient client{bench};
  std::span<std::byte> memory;
};

}  // namespace akv::gateway::test
