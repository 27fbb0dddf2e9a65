// A session that borrows: what the cache lends it, as its client sees it.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "gateway_transfer_support.hpp"

namespace akv::gateway::test {

inline constexpr std::uint64_t kCache = 512U << 10U;

struct Borrowed {
  EntryStatus status;
  std::uint32_t length;
  std::uint64_t offset;
};

// A session's memory of the cache, mapped as its client maps it.
class CacheView {
 public:
  explicit CacheView(const TestClient& client)
      : memory_(static_cast<const std::byte*>(
            ::mmap(nullptr, kCache, PROT_READ, MAP_SHARED, client.cache_fd.get(), 0))) {
    EXPECT_NE(memory_, MAP_FAILED);
  }
  ~CacheView() { ::munmap(const_cast<std::byte*>(memory_), kCache); }
  CacheView(const CacheView&) = delete;
  CacheView& operator=(const CacheView&) = delete;
  [[nodiscard]] Bytes content(const Borrowed& block) const {
    return {memory_ + block.offset, memory_ + block.offset + block.length};
  }
  [[nodiscard]] bool is(const Borrowed& block, const Bytes& value) const {
    return std::ranges::equal(std::span(memory_ + block.offset, block.length), value);
  }

 private:
  const std::byte* memory_;
};

class GatewayBorrow : public GatewayTransfer {
 protected:
  explicit GatewayBorrow(Limits limits = quick()) : GatewayTransfer(limits, kCache, true) {}
  void SetUp() override {
    GatewayTransfer::SetUp();
    ASSERT_TRUE(client.cache_fd);
    view = std::make_unique<CacheView>(client);
    place = alloc(kLength);
  }
  void store(unsigned key, unsigned seed) {
    fill(place, payload_of(kLength, seed));
    ASSERT_EQ(put(key, place, kLength), EntryStatus::ok);
  }
  void warm(unsigned key, unsigned seed) {
    store(key, seed);
    ASSERT_EQ(get(key, place, kLength), EntryStatus::ok);
  }
  static Bytes borrow_frame(const std::vector<unsigned>& keys, std::uint64_t id = 1) {
    Bytes body;
    for (const unsigned key : keys)
      append(body, key_of(key));
    return frame(Opcode::borrow, body, static_cast<std::uint32_t>(keys.size()), id);
  }
  static std::vector<Borrowed> borrow(TestClient& from, const std::vector<unsigned>& keys) {
    const auto reply = from.call(borrow_frame(keys));
    EXPECT_EQ(reply->body.size(), keys.size() * wire::kBorrowReplyEntryBytes);
    std::vector<Borrowed> all;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      all.push_back({reply->entry(i, 16), reply->number<std::uint32_t>(16 * i + 4),
                     reply->number<std::uint64_t>(16 * i + 8)});
    }
    return all;
  }
  Borrowed borrow(unsigned key) { return borrow(client, {key}).front(); }
  static FrameStatus give_back(TestClient& from, const std::vector<std::uint64_t>& offsets) {
    Bytes body;
    for (const std::uint64_t offset : offsets)
      append(body, offset);
    return from.call(frame(Opcode::give_back, body, static_cast<std::uint32_t>(offsets.size()), 2))->status();
  }
  FrameStatus give_back(const std::vector<std::uint64_t>& offsets) { return give_back(client, offsets); }
  [[nodiscard]] std::uint64_t borrowed_bytes() const { return bench.shared.cache.borrowed->load(); }
  // More blocks than the cache has room for.
  void flood(unsigned first) {
    for (unsigned key = first; key < first + 100; ++key)
      warm(key, key);
  }

  static constexpr std::uint32_t kLength = 10'000;
  static constexpr std::uint64_t kPages = 3 * 4096;
  std::unique_ptr<CacheView> view;
  std::uint64_t place{0};
};

}  // namespace akv::gateway::test
