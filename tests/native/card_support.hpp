// Helpers of the card tests: worker threads with reactors, and requests that a test can wait for.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "card/card_set.hpp"

namespace akv::card::test {

inline constexpr std::chrono::seconds kPatience{20};

class WorkerThreads {
 public:
  explicit WorkerThreads(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      reactors_.push_back(std::make_unique<Reactor>());
      threads_.emplace_back([reactor = reactors_.back().get()] { reactor->run(); });
    }
  }
  ~WorkerThreads() {
    for (auto& reactor : reactors_)
      reactor->stop();
    for (auto& thread : threads_)
      thread.join();
  }
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  [[nodiscard]] std::vector<Reactor*> reactors() const {
    std::vector<Reactor*> all;
    for (const auto& reactor : reactors_)
      all.push_back(reactor.get());
    return all;
  }

  // Runs `work` on a worker's thread and gives its result.
  template <typename Work>
  auto call(std::size_t worker, Work work) -> std::invoke_result_t<Work> {
    auto task = std::make_shared<std::packaged_task<std::invoke_result_t<Work>()>>(std::move(work));
    auto result = task->get_future();
    EXPECT_TRUE(reactors_[worker]->post([task] { (*task)(); }));
    EXPECT_EQ(result.wait_for(kPatience), std::future_status::ready) << "the worker's loop stands still";
    return result.get();
  }

 private:
  std::vector<std::unique_ptr<Reactor>> reactors_;
  std::vector<std::thread> threads_;
};

// Waits until the card's snapshot satisfies `wanted`.
template <typename Condition>
::testing::AssertionResult reaches(const CardSet& set, const std::string& serial, Condition wanted) {
  const Deadline deadline(monotonic_now(), kPatience);
  CardSnapshot last;
  while (!deadline.passed(monotonic_now())) {
    for (const CardSnapshot& card : set.status()) {
      if (card.serial != serial) continue;
      if (wanted(card)) return ::testing::AssertionSuccess();
      last = card;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::testing::AssertionFailure()
         << "card " << serial << " is " << to_string(last.state) << ": " << last.last_error;
}
inline ::testing::AssertionResult reaches(const CardSet& set, const std::string& serial, CardState state) {
  return reaches(set, serial, [state](const CardSnapshot& card) { return card.state == state; });
}

inline CardKey key(unsigned number) {
  CardKey value{};
  for (std::size_t i = 0; i < value.size(); ++i)
    value[i] = static_cast<std::byte>((number >> (8 * (i % 4))) ^ (i * 17));
  return value;
}

inline std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (auto& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56U);
  }
  return bytes;
}

// A request with its own buffer, split in a 64-byte vector and the rest as the gateway does.
class Request final : public IoRequest {
 public:
  Request(IoOp wanted, const CardKey& for_key, std::vector<std::byte> buffer = {})
      : bytes(std::move(buffer)) {
    op = wanted;
    key = for_key;
    const std::size_t head = std::min<std::size_t>(bytes.size(), 64);
    vectors_[0] = {bytes.data(), head};
    vectors_[1] = {bytes.data() + head, bytes.size() - head};
    const std::size_t count = bytes.empty() ? 0 : (bytes.size() > 64 ? 2 : 1);
    data = std::span(vectors_).first(count);
  }

  // The result, once it is completed and released.
  IoResult wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [this] { return released_ > 0; })) << "not released";
    EXPECT_EQ(completed_, 1);
    EXPECT_EQ(released_, 1);
    return result_;
  }
  IoResult wait_completed() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [this] { return completed_ > 0; })) << "not completed";
    return result_;
  }
  [[nodiscard]] bool was_read() {
    const std::lock_guard lock(mutex_);
    return sendings_ > 0;
  }
  [[nodiscard]] bool released_yet() {
    const std::lock_guard lock(mutex_);
    return released_ > 0;
  }

  std::vector<std::byte> bytes;
  // Called before a store's data is read.
  std::function<void()> at_sending;
  // What was told to be in place, as it was then; to be looked at once it is completed.
  std::vector<std::byte> seen;

 private:
  void sending() noexcept override {
    EXPECT_EQ(op, IoOp::store);
    {
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(sendings_++, 0) << "read twice";
      EXPECT_EQ(completed_, 0) << "read after it was completed";
    }
    if (at_sending) at_sending();
  }
  void arrived(std::uint32_t count) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(op, IoOp::retrieve);
    EXPECT_EQ(completed_, 0) << "arrived after it was completed";
    EXPECT_GT(count, seen.size());
    seen.insert(seen.end(), bytes.begin() + static_cast<long>(seen.size()), bytes.begin() + count);
  }
  void completed(const IoResult& result) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(completed_++, 0) << "completed twice";
    EXPECT_EQ(released_, 0) << "released before it was completed";
    result_ = result;
    changed_.notify_all();
  }
  void released() noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(completed_, 1) << "released before it was completed";
    EXPECT_EQ(released_++, 0) << "released twice";
    changed_.notify_all();
  }

  std::array<iovec, 2> vectors_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  IoResult result_;
  int sendings_{0};
  int completed_{0};
  int released_{0};
};

}  // namespace akv::card::test
