#include "softcard/store_access.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

namespace akv::softcard {
namespace {

constexpr std::uint64_t kMostBytesAtOnce = std::uint64_t{4} << 20U;

// Memory that runs out on a thread fails its command and not the card.
template <typename Call>
nvme::Status or_internal_error(const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return nvme::kInternalError;
  }
}

}  // namespace

void DirectAccess::get(const nvme::KvKey& key, GetDone done) {
  Value value;
  const auto status = store_.get(key, value);
  done(status, std::move(value));
}

void DirectAccess::put(const nvme::KvKey& key, Value value, std::uint8_t options, Done done) {
  done(store_.put(key, std::move(value), options));
}

void DirectAccess::remove(const nvme::KvKey& key, Done done) {
  done(store_.remove(key));
}

ThreadedAccess::ThreadedAccess(Reactor& reactor, FileStore& store, std::size_t readers)
    : reactor_(reactor), store_(store), ready_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!ready_) throw std::system_error(errno, std::generic_category(), "eventfd");
  reactor_.add(ready_.get(), EPOLLIN, *this);
  threads_.emplace_back([this] { serve(writes_); });
  for (std::size_t i = 0; i < readers; ++i)
    threads_.emplace_back([this] { serve(reads_); });
}

ThreadedAccess::~ThreadedAccess() {
  reactor_.remove(ready_.get());
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    reads_.work.clear();
    reads_.more.notify_all();
    writes_.more.notify_all();
  }
  threads_.clear();
}

// The key's absence is known without the medium.
void ThreadedAccess::get(const nvme::KvKey& key, GetDone done) {
  if (!store_.contains(key)) return done(nvme::kKvKeyDoesNotExist, {});
  enqueue(reads_, [this, key, done = std::move(done)]() mutable -> Answer {
    Value value;
    const auto status = or_internal_error([&] { return store_.get(key, value); });
    if (status == nvme::kKvUnrecoveredError) enqueue(writes_, [this] { return settle(); });
    return [done = std::move(done), status, value = std::move(value)]() mutable {
      done(status, std::move(value));
    };
  });
}

// What is left is marked before the next write.
ThreadedAccess::Answer ThreadedAccess::settle() {
  static_cast<void>(or_internal_error([this] {
    store_.settle();
    return nvme::kSuccess;
  }));
  return [] {};
}

void ThreadedAccess::put(const nvme::KvKey& key, Value value, std::uint8_t options, Done done) {
  {
    const std::lock_guard lock(mutex_);
    puts_.push_back(
        {.request = {.key = key, .value = std::move(value), .options = options}, .done = std::move(done)});
  }
  enqueue(writes_, [this] { return write_puts(); });
}

// Those that wait, as far as one write should go.
std::vector<ThreadedAccess::PutCall> ThreadedAccess::take_puts() {
  std::vector<PutCall> taken;
  std::uint64_t bytes = 0;
  const std::lock_guard lock(mutex_);
  while (!puts_.empty() && taken.size() < CardFile::kMostPieces) {
    bytes += puts_.front().request.value.size;
    if (!taken.empty() && bytes > kMostBytesAtOnce) break;
    taken.push_back(std::move(puts_.front()));
    puts_.pop_front();
  }
  return taken;
}

// Nothing is left to do in the turn of a store that went with an earlier one.
ThreadedAccess::Answer ThreadedAccess::write_puts() {
  auto calls = take_puts();
  std::vector<PutRequest> requests;
  requests.reserve(calls.size());
  for (PutCall& call : calls)
    requests.push_back(std::move(call.request));
  try {
    store_.put_all(requests);
  } catch (const std::bad_alloc&) {
    // What was not answered is an internal error.
  }
  for (std::size_t i = 0; i < calls.size(); ++i)
    calls[i].request.status = requests[i].status;
  return [calls = std::move(calls)] {
    for (const PutCall& call : calls)
      call.done(call.request.status);
  };
}

void ThreadedAccess::remove(const nvme::KvKey& key, Done done) {
  enqueue(writes_, [this, key, done = std::move(done)]() mutable -> Answer {
    const auto status = or_internal_error([&] { return store_.remove(key); });
    return [done = std::move(done), status] { done(status); };
  });
}

std::size_t ThreadedAccess::waiting() const noexcept {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

void ThreadedAccess::enqueue(Line& line, Work work) {
  const std::lock_guard lock(mutex_);
  line.work.push_back(std::move(work));
  ++waiting_;
  line.more.notify_one();
}

void ThreadedAccess::serve(Line& line) {
  std::unique_lock lock(mutex_);
  while (true) {
    line.more.wait(lock, [&] { return ending_ || !line.work.empty(); });
    if (line.work.empty()) return;
    auto work = std::move(line.work.front());
    line.work.pop_front();
    lock.unlock();
    auto answer = work();
    work = nullptr;
    lock.lock();
    answers_.push_back(std::move(answer));
    --waiting_;
    if (answers_.size() > 1) continue;  // the reactor knows already
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto told = ::write(ready_.get(), &one, sizeof one);  // can't fail: it is 0 or 1
  }
}

void ThreadedAccess::on_events(std::uint32_t) noexcept {
  std::vector<Answer> answers;
  {
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(ready_.get(), &count, sizeof count);
    answers.swap(answers_);
  }
  for (const auto& answer : answers)
    answer();
}

}  // namespace akv::softcard
