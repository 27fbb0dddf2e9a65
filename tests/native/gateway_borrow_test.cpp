// Copies that clients read where the cache has them: lent in time, never written, never moved, never lost.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include "gateway_borrow_support.hpp"

namespace akv::gateway::test {
namespace {

TEST_F(GatewayBorrow, ABlockIsReadWhereItIsAndCountsAsAHit) {
  warm(1, 1);
  const int asked = queue().submitted[card::IoOp::retrieve];
  const Borrowed block = borrow(1);
  ASSERT_EQ(block.status, EntryStatus::ok);
  EXPECT_EQ(block.length, kLength);
  EXPECT_EQ(view->content(block), payload_of(kLength, 1));
  EXPECT_EQ(borrowed_bytes(), kPages);
  EXPECT_EQ(give_back({block.offset}), FrameStatus::ok);
  EXPECT_EQ(borrowed_bytes(), 0U);
  EXPECT_EQ(queue().submitted[card::IoOp::retrieve], asked);
  EXPECT_EQ(bench.counter(Counter::borrowed), 1U);
  EXPECT_EQ(bench.counter(Counter::cache_hits), 1U);
  EXPECT_EQ(bench.counter(Counter::hits), 2U);
  EXPECT_EQ(bench.counter(Counter::gets), 2U);
  EXPECT_EQ(bench.counter(Counter::bytes_read), 2 * kLength);
  EXPECT_EQ(give_back({block.offset}), FrameStatus::no_such_block);
}

TEST_F(GatewayBorrow, NoClientCanChangeTheMemory) {
  const int fd = client.cache_fd.get();
  EXPECT_EQ(::mmap(nullptr, kCache, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  const char byte = 1;
  EXPECT_EQ(::pwrite(fd, &byte, 1, 0), -1);
  EXPECT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(::ftruncate(fd, 0), -1);
  EXPECT_EQ(::ftruncate(fd, 2 * kCache), -1);
  EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1) << "nobody can seal the gateway out";
  void* const read = ::mmap(nullptr, kCache, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(read, MAP_FAILED);
  EXPECT_EQ(::mprotect(read, kCache, PROT_READ | PROT_WRITE), -1);
  ::munmap(read, kCache);
  const UniqueFd anew(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(anew) << "the file's mode lets its owner open it for writing";
  EXPECT_EQ(::mmap(nullptr, kCache, PROT_READ | PROT_WRITE, MAP_SHARED, anew.get(), 0), MAP_FAILED);
  EXPECT_EQ(::pwrite(anew.get(), &byte, 1, 0), -1);
}

TEST_F(GatewayBorrow, TheWelcomeTellsTheSizeAndTheBoundBehindWhatItTellsOfRegions) {
  TestClient other(bench);
  const auto plain = other.hello(0, "default", wire::kFeatureBorrowing);
  EXPECT_EQ(plain->body.size(), wire::kWelcomeBytes) << "not without shared memory";
  client.hang_up();
  bench.turn();
  TestClient both(bench);
  const auto welcome = both.hello(4096, "default", wire::kFeatureBorrowing | wire::kFeatureRegions);
  EXPECT_EQ(welcome->number<std::uint32_t>(4), 7U);
  ASSERT_EQ(welcome->body.size(), 112U);
  EXPECT_EQ(welcome->number<std::uint32_t>(80), quick().max_regions);
  EXPECT_EQ(welcome->number<std::uint64_t>(96), kCache);
  EXPECT_EQ(welcome->number<std::uint32_t>(104), quick().max_borrowed);
  EXPECT_EQ(both.fd_offset, 0U);
  EXPECT_TRUE(both.memory_fd);
  EXPECT_TRUE(both.cache_fd);
}

TEST(GatewayBorrowing, IsNotGrantedWhereTheCacheIsNotLentOrIsOfManyTenants) {
  Bench own({}, {}, 1U << 20U, kCache);
  Bench tenants({}, {{"default", kv::Secret{}}}, 1U << 20U, kCache, true);
  Bench remote({}, {}, 1U << 20U, kCache, true);
  for (Bench* const bench : {&own, &tenants, &remote}) {
    TestClient client(*bench, bench != &remote);
    auto reply = client.hello(4096, "default", wire::kFeatureBorrowing);
    if (reply->status() == FrameStatus::auth_required) {
      Bytes body = hello_body(4096, "default", wire::kFeatureBorrowing);
      wire::Nonce server;
      std::ranges::copy(reply->body, server.begin());
      std::ranges::copy(session_mac(kClientLabel, {}, {}, server, "default"), body.begin() + 48);
      reply = client.call(frame(Opcode::hello, body, 0, 1));
    }
    ASSERT_EQ(reply->status(), FrameStatus::ok);
    EXPECT_EQ(reply->number<std::uint32_t>(4) & wire::kFeatureBorrowing, 0U);
    EXPECT_EQ(reply->body.size(), wire::kWelcomeBytes);
    EXPECT_FALSE(client.cache_fd);
    EXPECT_EQ(client.call(frame(Opcode::borrow, key_of(1), 1, 2))->status(), FrameStatus::unsupported);
    EXPECT_EQ(client.call(frame(Opcode::give_back, Bytes(8), 1, 3))->status(), FrameStatus::unsupported);
  }
}

TEST(GatewayBorrowing, WithoutTheMemfdNothingIsLentAndTheCacheWorks) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  Counters counters;
  const CacheShare share{.limit = kCache,
                         .arena = arena::Budget::make(0),
                         .held = std::make_shared<std::atomic<std::uint64_t>>(0),
                         .borrowed = std::make_shared<std::atomic<std::uint64_t>>(0),
                         .lends = true};
  const rlimit none{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  ReadCache cache(share, counters);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(cache.lends());
  EXPECT_TRUE(cache.reserve(4096));
}

TEST_F(GatewayBorrow, OnlyThePresentValueIsLent) {
  EXPECT_EQ(borrow(1).status, EntryStatus::not_cached);
  store(1, 1);
  EXPECT_EQ(borrow(1).status, EntryStatus::not_cached) << "no card is asked";
  EXPECT_EQ(get(1, place, kLength), EntryStatus::ok);
  queue().hold = true;
  const auto source = alloc(kLength);
  fill(source, payload_of(kLength, 2));
  client.send(request(Opcode::put, 1, source, kLength, 10));
  wait_held(1);
  EXPECT_EQ(borrow(1).status, EntryStatus::not_cached) << "while it is written";
  queue().answer(0);
  EXPECT_EQ(client.reply()->header.request_id, 10U);
  queue().hold = false;
  EXPECT_EQ(borrow(1).status, EntryStatus::not_cached) << "the copy is of the value before";
  EXPECT_EQ(bench.counter(Counter::cache_stale), 1U);
  EXPECT_EQ(get(1, place, kLength), EntryStatus::ok);
  EXPECT_EQ(view->content(borrow(1)), payload_of(kLength, 2));
  EXPECT_EQ(bench.counter(Counter::borrow_misses), 4U);
  bench.route({});
  EXPECT_EQ(borrow(1).status, EntryStatus::not_cached) << "no card serves the dialog";
}

// Keys are looked up some ahead, in parts.
TEST_F(GatewayBorrow, ALongRequestIsAnsweredInTheOrderOfItsKeys) {
  for (unsigned key = 0; key < 5; ++key)
    warm(key, key);
  for (const std::size_t count : {31U, 32U, 33U, 64U, 100U}) {
    std::vector<unsigned> keys;
    for (unsigned i = 0; i < count; ++i)
      keys.push_back(i * 7 % 11);
    const auto loans = borrow(client, keys);
    std::vector<std::uint64_t> lent;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(loans[i].status, keys[i] < 5 ? EntryStatus::ok : EntryStatus::not_cached) << i;
      if (keys[i] >= 5) continue;
      EXPECT_TRUE(view->is(loans[i], payload_of(kLength, keys[i]))) << i;
      lent.push_back(loans[i].offset);
    }
    EXPECT_EQ(give_back(lent), FrameStatus::ok);
  }
}

TEST_F(GatewayBorrow, NamespacesDoNotFindEachOthersBlocks) {
  warm(1, 1);
  client.hang_up();
  bench.turn();
  TestClient other(bench);
  ASSERT_TRUE(other.hello(4096, "other", wire::kFeatureBorrowing));
  EXPECT_EQ(borrow(other, {1}).front().status, EntryStatus::not_cached);
}

TEST_F(GatewayBorrow, ReturningIsAllOrNothingAndCountsEachLoan) {
  warm(1, 1);
  warm(2, 2);
  const auto loans = borrow(client, {1, 2, 1, 99});
  ASSERT_EQ(loans[2].status, EntryStatus::ok);
  EXPECT_EQ(loans[2].offset, loans[0].offset);
  EXPECT_EQ(loans[3].status, EntryStatus::not_cached);
  EXPECT_EQ(loans[3].length, 0U);
  const std::uint64_t one = loans[0].offset;
  const std::uint64_t two = loans[1].offset;
  EXPECT_EQ(borrowed_bytes(), 2 * kPages);
  EXPECT_EQ(give_back({one, two, two}), FrameStatus::no_such_block);
  EXPECT_EQ(give_back({one, two, one, one}), FrameStatus::no_such_block);
  EXPECT_EQ(give_back({one, one + 4096}), FrameStatus::no_such_block);
  EXPECT_EQ(give_back({one + 1}), FrameStatus::no_such_block);
  EXPECT_EQ(give_back({kCache}), FrameStatus::no_such_block);
  EXPECT_EQ(give_back({~std::uint64_t{0}}), FrameStatus::no_such_block);
  EXPECT_EQ(borrowed_bytes(), 2 * kPages) << "nothing was returned";
  EXPECT_EQ(give_back({one, two}), FrameStatus::ok);
  EXPECT_EQ(borrowed_bytes(), kPages);
  TestClient stranger(bench);
  ASSERT_TRUE(stranger.hello(0));
  EXPECT_EQ(stranger.call(frame(Opcode::give_back, Bytes(8), 1, 3))->status(), FrameStatus::unsupported);
  EXPECT_EQ(give_back({one}), FrameStatus::ok);
  EXPECT_EQ(borrowed_bytes(), 0U);
}

TEST_F(GatewayBorrow, ALentBlockOutlivesEvictionReplacementAndDeletion) {
  for (unsigned key = 1; key <= 3; ++key)
    warm(key, key);
  const auto loans = borrow(client, {1, 2, 3});
  store(2, 22);
  EXPECT_EQ(client.call(frame(Opcode::remove, key_of(3), 1, 1))->entry(0, 4), EntryStatus::ok);
  EXPECT_EQ(get(2, place, kLength), EntryStatus::ok);
  EXPECT_EQ(get(3, place, kLength), EntryStatus::miss);
  flood(100);
  EXPECT_GT(bench.counter(Counter::cache_evictions), 50U);
  for (unsigned i = 0; i < 3; ++i)
    EXPECT_TRUE(view->is(loans[i], payload_of(kLength, i + 1)));
  EXPECT_EQ(give_back({loans[0].offset, loans[1].offset, loans[2].offset}), FrameStatus::ok);
  flood(300);
  EXPECT_FALSE(view->is(loans[2], payload_of(kLength, 3))) << "its pages are used again";
  EXPECT_LE(bench.shared.cache.held->load(), kCache);
}

TEST_F(GatewayBorrow, AllThatASessionBorrowedComesBackWhenItEnds) {
  warm(1, 1);
  TestClient other(bench);
  client.hang_up();
  bench.turn();
  ASSERT_TRUE(other.hello(4096, "default", wire::kFeatureBorrowing));
  const auto loans = borrow(other, {1, 1});
  ASSERT_EQ(loans[1].status, EntryStatus::ok);
  EXPECT_EQ(borrowed_bytes(), kPages);
  other.hang_up();
  EXPECT_TRUE(bench.turn_until([&] { return bench.shared.sessions.load() == 0; }));
  EXPECT_EQ(borrowed_bytes(), 0U);
}

TEST_F(GatewayBorrow, AtMostHalfOfTheCacheIsLentAtATime) {
  std::vector<unsigned> keys;
  for (unsigned key = 0; key < 40; ++key) {
    warm(key, key);
    keys.push_back(key);
  }
  const auto loans = borrow(client, keys);
  const auto lent = std::ranges::count(loans, EntryStatus::ok, &Borrowed::status);
  EXPECT_EQ(static_cast<std::uint64_t>(lent), kCache / 2 / kPages);
  EXPECT_LE(borrowed_bytes(), kCache / 2);
  flood(100);
  EXPECT_GT(bench.counter(Counter::cache_fills), 100U) << "the other half works on";
  for (unsigned i = 0; i < 40; ++i) {
    if (loans[i].status == EntryStatus::ok) {
      EXPECT_TRUE(view->is(loans[i], payload_of(kLength, i)));
    }
  }
}

TEST_F(GatewayBorrow, BadRequestsLeaveTheSessionUsable) {
  const auto status = [this](Opcode opcode, const Bytes& body, std::uint32_t count, std::uint16_t how = 0) {
    return client.call(frame(opcode, body, count, 3, how))->status();
  };
  EXPECT_EQ(status(Opcode::borrow, {}, 0), FrameStatus::bad_request);
  EXPECT_EQ(status(Opcode::borrow, Bytes(33), 1), FrameStatus::bad_request);
  EXPECT_EQ(status(Opcode::borrow, Bytes(32), 1, 1), FrameStatus::bad_request);
  EXPECT_EQ(status(Opcode::borrow, Bytes(32 * 4097), 4097), FrameStatus::bad_request);
  EXPECT_EQ(status(Opcode::give_back, {}, 0), FrameStatus::bad_request);
  EXPECT_EQ(status(Opcode::give_back, Bytes(9), 1), FrameStatus::bad_request);
  EXPECT_EQ(status(Opcode::give_back, Bytes(8), 1, 1), FrameStatus::bad_request);
  warm(1, 1);
  EXPECT_EQ(borrow(1).status, EntryStatus::ok);
}

class GatewayBorrowFew : public GatewayBorrow {
 protected:
  static Limits few() {
    Limits limits = quick();
    limits.max_borrowed = 3;
    return limits;
  }
  GatewayBorrowFew() : GatewayBorrow(few()) {}
};

TEST_F(GatewayBorrowFew, ASessionHasABound) {
  warm(1, 1);
  const auto loans = borrow(client, {1, 1, 1, 1});
  EXPECT_EQ(loans[2].status, EntryStatus::ok);
  EXPECT_EQ(loans[3].status, EntryStatus::not_cached);
  EXPECT_EQ(give_back({loans[0].offset}), FrameStatus::ok);
  EXPECT_EQ(borrow(1).status, EntryStatus::ok);
  EXPECT_EQ(borrow(1).status, EntryStatus::not_cached);
}

}  // namespace
}  // namespace akv::gateway::test
