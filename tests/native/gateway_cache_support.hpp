// A session over a read cache, and one block of it that the test moves to and fro.
#pragma once

#include <map>

#include "gateway_transfer_support.hpp"

namespace akv::gateway::test {

class GatewayCache : public GatewayTransfer {
 protected:
  explicit GatewayCache(std::uint64_t cache = 512U << 10U, Limits limits = quick())
      : GatewayTransfer(limits, cache) {}
  void SetUp() override {
    GatewayTransfer::SetUp();
    place = alloc(kLength);
  }
  EntryStatus store(unsigned key, unsigned seed) {
    fill(place, payload_of(kLength, seed));
    return put(key, place, kLength);
  }
  // The seed's block came.
  bool loads(unsigned key, unsigned seed) {
    fill(place, Bytes(kLength));
    return get(key, place, kLength) == EntryStatus::ok &&
           content(place, kLength) == payload_of(kLength, seed);
  }
  bool exists(unsigned key) {
    return client.call(frame(Opcode::exists, key_of(key), 1, 1))->number<std::uint32_t>(0) == 1;
  }
  EntryStatus remove(unsigned key) {
    return client.call(frame(Opcode::remove, key_of(key), 1, 1))->entry(0, 4);
  }
  int asked(card::IoOp op) { return queue().submitted[op]; }
  // A GET of key 1 (request 10, into `place`) is with the card while a PUT of seed 2 (request 11, from
  // `source`) overtakes it. Returns what the card held before the PUT.
  std::map<card::CardKey, Bytes> put_overtakes_get(std::uint64_t source) {
    auto before = queue().values;
    queue().hold = true;
    client.send(request(Opcode::get, 1, place, kLength, 10));
    wait_held(1);
    fill(source, payload_of(kLength, 2));
    client.send(request(Opcode::put, 1, source, kLength, 11));
    wait_held(2);
    queue().answer(1);
    EXPECT_EQ(client.reply()->header.request_id, 11U);
    return before;
  }

  static constexpr std::uint32_t kLength = 10'000;
  std::uint64_t place{0};
};

}  // namespace akv::gateway::test
