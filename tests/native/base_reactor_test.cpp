#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "base/reactor.hpp"
#include "base/unique_fd.hpp"

namespace akv {
namespace {

using std::chrono::milliseconds;

struct Readable final : FdHandler {
  explicit Readable(std::function<void()> work) : on_ready(std::move(work)) {}
  void on_events(std::uint32_t) noexcept override { on_ready(); }
  std::function<void()> on_ready;
};

UniqueFd signalled_fd() {
  return UniqueFd(::eventfd(1, EFD_NONBLOCK));
}

TEST(Reactor, RunsTimersInOrderOfTheirTime) {
  Reactor reactor;
  std::vector<int> order;
  const TimePoint base = Clock::now();
  const TimerId late = reactor.call_at(base + milliseconds(3), [&] { order.push_back(3); });
  const TimerId early = reactor.call_at(base + milliseconds(1), [&] { order.push_back(1); });
  const TimerId gone = reactor.call_at(base + milliseconds(2), [&] { order.push_back(2); });
  EXPECT_NE(late, early);
  reactor.cancel(gone);
  while (order.size() < 2)
    reactor.run_once(milliseconds(100));
  EXPECT_EQ(order, (std::vector<int>{1, 3}));
}

TEST(Reactor, TimerThatAddsATimerDoesNotStarveTheTurn) {
  Reactor reactor;
  int runs = 0;
  std::function<void()> again = [&] {
    ++runs;
    [[maybe_unused]] const TimerId next = reactor.call_at(reactor.now(), again);
  };
  [[maybe_unused]] const TimerId first = reactor.call_at(reactor.now(), again);
  reactor.run_once(milliseconds(0));
  EXPECT_EQ(runs, 1);
}

TEST(Reactor, CountsTheTimeInWhichItDoesNotWait) {
  for (const Waiting how : {Waiting::sleep, Waiting::adaptive, Waiting::poll}) {
    Reactor reactor;
    std::atomic<std::uint64_t> busy{0};
    reactor.set_waiting(how);
    reactor.count_busy(busy);
    constexpr milliseconds work{20};
    constexpr milliseconds pause{40};
    TimePoint worked;
    TimePoint woken;
    const TimerId first = reactor.call_after(milliseconds(0), [&] {
      const TimePoint start = Clock::now();
      while (Clock::now() - start < work) {
      }
      worked = Clock::now();
      const TimerId second = reactor.call_at(worked + pause, [&] {
        woken = Clock::now();
        reactor.stop();
      });
      EXPECT_NE(second, 0U);
    });
    EXPECT_NE(first, 0U);
    const TimePoint begin = Clock::now();
    reactor.run();
    const std::chrono::nanoseconds counted(busy.load());
    EXPECT_GE(counted, work);
    // Half: the thread may lose its core before it begins to wait.
    EXPECT_LE(counted, woken - begin - pause / 2) << "waiting counts for nothing";
  }
}

TEST(Reactor, CancelledTimersDoNotPileUp) {
  Reactor reactor;
  for (int i = 0; i < 100000; ++i)
    reactor.cancel(reactor.call_after(std::chrono::hours(1), [] { FAIL(); }));
  reactor.run_once(milliseconds(0));
}

TEST(Reactor, RemovedHandlerIsNotCalledForFetchedEvents) {
  Reactor reactor;
  const UniqueFd first = signalled_fd();
  const UniqueFd second = signalled_fd();
  int calls = 0;
  std::optional<Readable> left;
  std::optional<Readable> right;
  left.emplace([&] {
    ++calls;
    reactor.remove(first.get());
    reactor.remove(second.get());
  });
  right.emplace(left->on_ready);
  reactor.add(first.get(), EPOLLIN, *left);
  reactor.add(second.get(), EPOLLIN, *right);
  reactor.run_once(milliseconds(100));
  EXPECT_EQ(calls, 1);
}

TEST(Reactor, DeferredWorkRunsAfterTheEventAndMayDefer) {
  Reactor reactor;
  const UniqueFd fd = signalled_fd();
  std::vector<int> order;
  Readable handler([&] {
    reactor.defer([&] {
      order.push_back(2);
      reactor.defer([&] { order.push_back(3); });
    });
    order.push_back(1);
    reactor.remove(fd.get());
  });
  reactor.add(fd.get(), EPOLLIN, handler);
  reactor.run_once(milliseconds(100));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(Reactor, AfterEventRunsOnceForManyRequestsAndIsTakenBack) {
  Reactor reactor;
  int flushed = 0;
  AfterEvent flush(reactor, [&] { ++flushed; });
  auto doomed = std::make_unique<AfterEvent>(reactor, [] { FAIL() << "was destroyed before its turn"; });
  flush.request();
  doomed->request();
  flush.request();
  doomed.reset();
  reactor.run_once(milliseconds(0));
  EXPECT_EQ(flushed, 1);
  flush.request();
  reactor.run_once(milliseconds(0));
  EXPECT_EQ(flushed, 2);
}

TEST(Reactor, PostsFromManyThreadsArriveInEachThreadsOrder) {
  Reactor reactor;
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  std::array<int, kThreads> seen{};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kEach; ++i) {
        EXPECT_TRUE(
            reactor.post([&seen, thread, i] { EXPECT_EQ(seen[static_cast<std::size_t>(thread)]++, i); }));
      }
    });
  }
  const auto done = [&] { return std::ranges::all_of(seen, [](int count) { return count == kEach; }); };
  while (!done())
    reactor.run_once(milliseconds(100));
  for (auto& thread : threads)
    thread.join();
}

TEST(Reactor, MailboxIsBounded) {
  Reactor reactor;
  int accepted = 0;
  while (reactor.post([] {}))
    ++accepted;
  EXPECT_EQ(accepted, 65536);
  reactor.run_once(milliseconds(0));
  EXPECT_TRUE(reactor.post([] {}));
}

std::chrono::nanoseconds cpu_time_of_this_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

class ReactorWaiting : public ::testing::TestWithParam<Waiting> {};

TEST_P(ReactorWaiting, FallsAsleepWhenNothingComes) {
  Reactor reactor;
  reactor.set_waiting(GetParam());
  reactor.expect(1);
  static_cast<void>(reactor.call_after(milliseconds(300), [&] { reactor.stop(); }));
  const auto before = cpu_time_of_this_thread();
  reactor.run();
  EXPECT_LT(cpu_time_of_this_thread() - before, milliseconds(100));
}

TEST_P(ReactorWaiting, FallsAsleepAfterQuickRequests) {
  Reactor reactor;
  reactor.set_waiting(GetParam());
  std::atomic<int> served{0};
  std::thread asker([&] {
    for (int i = 0; i < 200; ++i) {
      EXPECT_TRUE(reactor.post([&] { ++served; }));
      while (served.load() == i)
        std::this_thread::yield();
    }
  });
  while (served.load() < 200)
    reactor.run_once(milliseconds(100));
  asker.join();
  static_cast<void>(reactor.call_after(milliseconds(300), [&] { reactor.stop(); }));
  const auto before = cpu_time_of_this_thread();
  reactor.run();
  EXPECT_LT(cpu_time_of_this_thread() - before, milliseconds(100));
}

TEST_P(ReactorWaiting, TimersAndPostsComeThrough) {
  Reactor reactor;
  reactor.set_waiting(GetParam());
  reactor.expect(1);
  int posted = 0;
  for (int i = 0; i < 10; ++i) {
    std::thread poster([&] { EXPECT_TRUE(reactor.post([&] { ++posted; })); });
    while (posted == i)
      reactor.run_once(milliseconds(100));
    poster.join();
  }
  bool rang = false;
  static_cast<void>(reactor.call_after(milliseconds(2), [&] { rang = true; }));
  while (!rang)
    reactor.run_once(milliseconds(100));
}

INSTANTIATE_TEST_SUITE_P(All, ReactorWaiting,
                         ::testing::Values(Waiting::sleep, Waiting::adaptive, Waiting::poll));

using std::chrono::microseconds;

TEST(Patience, SleepsAtOnceUnlessToldOtherwise) {
  Patience patience;
  patience.slept(microseconds(5));
  EXPECT_EQ(patience.window(), microseconds(0));
}

TEST(Patience, PollsLongerWhereThatWouldHaveSavedASleep) {
  Patience patience(Waiting::adaptive);
  EXPECT_EQ(patience.window(), microseconds(0));
  patience.slept(microseconds(30));
  EXPECT_EQ(patience.window(), Patience::kFirst);
  for (int i = 0; i < 10; ++i)
    patience.slept(microseconds(90));
  EXPECT_EQ(patience.window(), Patience::kMost);
}

TEST(Patience, SleepsAtOnceAfterALongWait) {
  Patience patience(Waiting::adaptive);
  patience.slept(microseconds(30));
  patience.slept(Patience::kMost + microseconds(1));
  EXPECT_EQ(patience.window(), microseconds(0));
}

TEST(Patience, WaitsLessForWhatNobodyOwes) {
  Patience patience(Waiting::adaptive, Patience::kMostUnasked);
  for (int i = 0; i < 10; ++i)
    patience.slept(microseconds(90));
  EXPECT_EQ(patience.window(), Patience::kMostUnasked);
  patience.slept(Patience::kMostUnasked + microseconds(1));
  EXPECT_EQ(patience.window(), microseconds(0));
}

TEST(Patience, GivesWayToWhoeverTakesTheCore) {
  Patience patience(Waiting::adaptive);
  patience.slept(microseconds(30));
  EXPECT_FALSE(patience.interrupted(microseconds(2)));
  EXPECT_TRUE(patience.interrupted(Patience::kInterrupted));
  EXPECT_EQ(patience.window(), microseconds(0));
}

TEST(Patience, FullPollingIsAsLongWhateverComes) {
  Patience patience(Waiting::poll);
  patience.slept(microseconds(10'000));
  EXPECT_FALSE(patience.interrupted(microseconds(1000)));
  EXPECT_EQ(patience.window(), Patience::kMost);
  EXPECT_EQ(patience.window(false), microseconds(0)) << "a timer is followed by sleep";
}

TEST(Reactor, StopFromAnotherThreadEndsRun) {
  Reactor reactor;
  std::thread stopper([&] { reactor.stop(); });
  reactor.run();
  stopper.join();
}

}  // namespace
}  // namespace akv
