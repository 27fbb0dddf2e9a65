// How the card's reactor gets at its store: at once where values are in memory, through threads where they
// are in a file, so that the reactor never waits for a medium.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/reactor.hpp"
#include "base/unique_fd.hpp"
#include "softcard/file_store.hpp"
#include "softcard/store.hpp"

namespace akv::softcard {

// Answers come on the reactor's thread, from inside the call or later. Calls for one key are done in their
// order where the one before was answered; others may overtake each other.
class StoreAccess {
 public:
  using Done = std::function<void(nvme::Status)>;
  using GetDone = std::function<void(nvme::Status, Value)>;

  StoreAccess() = default;
  StoreAccess(const StoreAccess&) = delete;
  StoreAccess& operator=(const StoreAccess&) = delete;
  virtual ~StoreAccess() = default;

  // What needs no medium may be asked of it directly: find(), walk(), stats(), max_value_bytes().
  [[nodiscard]] virtual Store& store() noexcept = 0;
  virtual void get(const nvme::KvKey& key, GetDone done) = 0;
  virtual void put(const nvme::KvKey& key, Value value, std::uint8_t options, Done done) = 0;
  virtual void remove(const nvme::KvKey& key, Done done) = 0;
  // Calls that wait for the medium or are on it.
  [[nodiscard]] virtual std::size_t waiting() const noexcept = 0;
};

class DirectAccess final : public StoreAccess {
 public:
  explicit DirectAccess(Store& store) noexcept : store_(store) {}

  [[nodiscard]] Store& store() noexcept override { return store_; }
  void get(const nvme::KvKey& key, GetDone done) override;
  void put(const nvme::KvKey& key, Value value, std::uint8_t options, Done done) override;
  void remove(const nvme::KvKey& key, Done done) override;
  [[nodiscard]] std::size_t waiting() const noexcept override { return 0; }

 private:
  Store& store_;
};

// One thread writes (the file is a log), and takes all stores that wait for it at once, up to 256 of them or
// 4 MiB; `readers` threads read. The lines are as
// long as the card's connections let them be: each is bounded by its queue's size and by bytes.
class ThreadedAccess final : public StoreAccess, private FdHandler {
 public:
  ThreadedAccess(Reactor& reactor, FileStore& store, std::size_t readers);
  // Ends what was begun; answers of the rest are not given any more.
  ~ThreadedAccess() override;

  [[nodiscard]] Store& store() noexcept override { return store_; }
  void get(const nvme::KvKey& key, GetDone done) override;
  void put(const nvme::KvKey& key, Value value, std::uint8_t options, Done done) override;
  void remove(const nvme::KvKey& key, Done done) override;
  [[nodiscard]] std::size_t waiting() const noexcept override;

 private:
  using Answer = std::function<void()>;
  using Work = std::function<Answer()>;  // done on a thread; what it gives is called by the reactor
  struct Line {
    std::condition_variable more;
    std::deque<Work> work;
  };

  struct PutCall {
    PutRequest request;
    Done done;
  };

  void on_events(std::uint32_t events) noexcept override;
  [[nodiscard]] std::vector<PutCall> take_puts();
  [[nodiscard]] Answer write_puts();
  [[nodiscard]] Answer settle();
  void enqueue(Line& line, Work work);
  void serve(Line& line);

  Reactor& reactor_;
  FileStore& store_;
  UniqueFd ready_;  // an eventfd: answers are there
  mutable std::mutex mutex_;
  Line reads_;
  Line writes_;
  std::deque<PutCall> puts_;  // for each there is one turn in the line of writes, or there was
  std::vector<Answer> answers_;
  std::size_t waiting_{0};
  bool ending_{false};
  std::vector<std::jthread> threads_;
};

}  // namespace akv::softcard
