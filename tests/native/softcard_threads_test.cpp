// The threads between the card's reactor and its file.
#include <functional>
#include <optional>

#include "softcard/store_access.hpp"
#include "softcard_support.hpp"

namespace akv::softcard::test {
namespace {

// Threads, with a reactor on this one.
class Threads : public FileModes {
 protected:
  Threads() : store_(wanted()), access_(reactor_, store_, 2) {}

  void run_until(const std::function<bool()>& holds) {
    const auto end = monotonic_now() + std::chrono::seconds(30);
    while (!holds() && monotonic_now() < end)
      reactor_.run_once(std::chrono::milliseconds(50));
    ASSERT_TRUE(holds());
  }
  void put(const std::string& key, std::size_t size, unsigned seed) {
    std::optional<nvme::Status> status;
    access_.put(key_of(key), value_of(size, seed), 0, [&](nvme::Status got) { status = got; });
    run_until([&] { return status.has_value(); });
    EXPECT_EQ(*status, nvme::kSuccess);
  }

  Reactor reactor_;
  FileStore store_;
  ThreadedAccess access_;
};
INSTANTIATE_TEST_SUITE_P(PageCacheAndDirect, Threads, ::testing::Bool());

TEST_P(Threads, AReadThatHangsHoldsUpNoOther) {
  put("a", 5000, 1);
  put("b", 5000, 2);
  fault("file-read hang count=1");
  std::vector<std::string> done;
  access_.get(key_of("a"), [&](nvme::Status, const Value&) { done.emplace_back("a"); });
  run_until([&] { return faults_.all().front().hits == 1; });
  access_.get(key_of("b"), [&](nvme::Status status, const Value& value) {
    EXPECT_EQ(status, nvme::kSuccess);
    EXPECT_EQ(value.size, 5000U);
    done.emplace_back("b");
  });
  put("c", 100, 3);
  run_until([&] { return done.size() == 1; });
  EXPECT_EQ(done, std::vector<std::string>{"b"});
  EXPECT_EQ(access_.waiting(), 1U);
  faults_.clear();
  run_until([&] { return done.size() == 2; });
}

TEST_P(Threads, StoresThatWaitTogetherGoTogether) {
  fault("file-write hang count=1");
  std::size_t done = 0;
  const auto store = [&](unsigned number) {
    access_.put(key_of(std::to_string(number)), value_of(200, number), 0, [&](nvme::Status status) {
      EXPECT_EQ(status, nvme::kSuccess);
      ++done;
    });
  };
  store(0);
  run_until([&] { return faults_.all().front().hits == 1; });
  fault("file-write delay ms=1");
  for (unsigned number = 1; number < 9; ++number)
    store(number);
  std::optional<nvme::Status> removed;
  access_.remove(key_of("0"), [&](nvme::Status status) { removed = status; });
  EXPECT_EQ(access_.waiting(), 10U);
  EXPECT_EQ(done, 0U);
  faults_.release();
  run_until([&] { return done == 9 && removed; });
  EXPECT_EQ(*removed, nvme::kSuccess);
  EXPECT_LE(faults_.all().back().hits, 4U) << "8 stores by one write, and a removal with its mark";
  EXPECT_EQ(access_.waiting(), 0U);
  for (unsigned number = 1; number < 9; ++number)
    expect_value(store_, std::to_string(number), 200, number);
}

TEST_P(Threads, GetsWhileTheLogTurnsOverNeverSeeAnotherValue) {
  std::size_t outstanding = 0;
  std::size_t hits = 0;
  std::mt19937 source(3);
  for (unsigned i = 0; i < 3000; ++i) {
    const auto name = static_cast<unsigned>(source() % 200);
    const auto key = key_of(std::to_string(name));
    ++outstanding;
    if (i % 3 == 0) {
      access_.put(key, value_of(3000 + name, name), 0, [&](nvme::Status status) {
        EXPECT_EQ(status, nvme::kSuccess);
        --outstanding;
      });
    } else {
      access_.get(key, [&, name](nvme::Status status, const Value& value) {
        --outstanding;
        if (status == nvme::kKvKeyDoesNotExist) return;
        EXPECT_EQ(status, nvme::kSuccess);
        const auto expected = value_of(3000 + name, name);
        EXPECT_EQ(value.size, expected.size);
        EXPECT_EQ(std::memcmp(value.bytes.get(), expected.bytes.get(), expected.size), 0);
        ++hits;
      });
    }
    run_until([&] { return outstanding < 16; });
  }
  run_until([&] { return outstanding == 0; });
  EXPECT_GT(hits, 500U);
  EXPECT_EQ(store_.stats().corrupt, 0U);
}

// A removal needs a record, and in the end the space of the oldest segment, whose table is then read.
TEST_P(Threads, MemoryThatRunsOutFailsARemovalAndNotTheCard) {
  for (unsigned i = 0; store_.stats().evictions == 0; ++i)
    put("long" + std::to_string(i), 8000, i);
  for (unsigned i = 0; i < 500; ++i)
    put(std::to_string(i), 10, i);
  put("kept", 8000, 1);
  fault("file-read error error=ENOMEM");
  bool failed = false;
  for (unsigned i = 0; i < 500 && !failed; ++i) {
    std::optional<nvme::Status> status;
    access_.remove(key_of(std::to_string(i)), [&](nvme::Status got) { status = got; });
    run_until([&] { return status.has_value(); });
    failed = *status == nvme::kInternalError;
  }
  EXPECT_TRUE(failed);
  faults_.clear();
  expect_value(store_, "kept", 8000, 1);
}

TEST_P(Threads, TheirEndWaitsForNothingThatHangs) {
  put("a", 5000, 1);
  fault("file-read hang");
  access_.get(key_of("a"), [](nvme::Status, const Value&) { ADD_FAILURE() << "no answers at the end"; });
  run_until([&] { return faults_.all().front().hits == 1; });
  faults_.release();
}

}  // namespace
}  // namespace akv::softcard::test
