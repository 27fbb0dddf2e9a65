#include "base/reactor.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/short_wakeups.hpp"
#include "base/unique_fd.hpp"

namespace akv {
namespace {

constexpr std::size_t kMailboxLimit = 65536;
constexpr int kEventsPerTurn = 64;
constexpr auto kIdleWait = std::chrono::milliseconds(1000);
constexpr std::uint64_t kMailboxTag = ~std::uint64_t{0};

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::uint64_t tag_of(int fd, std::uint32_t generation) noexcept {
  return (std::uint64_t{generation} << 32U) | static_cast<std::uint32_t>(fd);
}

// Handlers by descriptor. A generation tells a descriptor from a later one of the same number.
class HandlerTable {
 public:
  std::uint64_t add(int fd, FdHandler& handler) {
    const auto index = static_cast<std::size_t>(fd);
    if (index >= entries_.size()) entries_.resize(index + 1);
    entries_[index].handler = &handler;
    return tag_of(fd, ++entries_[index].generation);
  }
  void remove(int fd) noexcept {
    const auto index = static_cast<std::size_t>(fd);
    if (index < entries_.size()) entries_[index].handler = nullptr;
  }
  [[nodiscard]] std::uint64_t tag(int fd) const {
    return tag_of(fd, entries_.at(static_cast<std::size_t>(fd)).generation);
  }
  [[nodiscard]] FdHandler* find(std::uint64_t tag) const noexcept {
    const auto index = static_cast<std::size_t>(tag & 0xFFFFFFFFU);
    if (index >= entries_.size() || entries_[index].generation != tag >> 32U) return nullptr;
    return entries_[index].handler;
  }

 private:
  struct Entry {
    FdHandler* handler{nullptr};
    std::uint32_t generation{0};
  };
  std::vector<Entry> entries_;
};

// Timers by due time; a cancelled one stays in the heap until it surfaces or a sweep takes it.
class TimerHeap {
 public:
  TimerId add(TimePoint when, std::function<void()> callback) {
    const TimerId id = ++last_id_;
    callbacks_.emplace(id, std::move(callback));
    heap_.push_back({when, id});
    std::push_heap(heap_.begin(), heap_.end(), later);
    return id;
  }
  void cancel(TimerId id) noexcept {
    callbacks_.erase(id);
    if (heap_.size() > 2 * callbacks_.size() + kSlack) sweep();
  }
  // Due time of the next timer that was not cancelled; TimePoint::max() without one.
  [[nodiscard]] TimePoint next_due() noexcept {
    while (!heap_.empty() && !callbacks_.contains(heap_.front().id))
      pop();
    return heap_.empty() ? TimePoint::max() : heap_.front().when;
  }
  // Takes the next timer's callback out.
  [[nodiscard]] std::function<void()> take_next() {
    auto node = callbacks_.extract(heap_.front().id);
    pop();
    return std::move(node.mapped());
  }
  [[nodiscard]] TimerId last_id() const noexcept { return last_id_; }
  [[nodiscard]] TimerId next_id() const noexcept { return heap_.front().id; }

 private:
  static constexpr std::size_t kSlack = 64;
  struct Entry {
    TimePoint when;
    TimerId id;
  };
  static bool later(const Entry& left, const Entry& right) noexcept {
    return left.when != right.when ? left.when > right.when : left.id > right.id;
  }
  void pop() noexcept {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
  }
  void sweep() noexcept {
    std::erase_if(heap_, [this](const Entry& entry) { return !callbacks_.contains(entry.id); });
    std::make_heap(heap_.begin(), heap_.end(), later);
  }

  std::vector<Entry> heap_;
  std::unordered_map<TimerId, std::function<void()>> callbacks_;
  TimerId last_id_{0};
};

}  // namespace

struct Reactor::Impl {
  UniqueFd epoll{::epoll_create1(EPOLL_CLOEXEC)};
  UniqueFd wakeup{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  HandlerTable handlers;
  TimerHeap timers;
  std::vector<std::function<void()>> deferred;
  std::vector<AfterEvent*> after_event;
  TimePoint now{Clock::now()};
  Patience answers;   // waits for what is expected
  Patience requests;  // other waits
  int expected{0};
  bool woken_by_event{false};  // the last wait ended with an event
  std::chrono::nanoseconds busy{0};
  std::atomic<std::uint64_t>* told_busy{nullptr};
  std::optional<ShortWakeups> wakeups;
  std::atomic<bool> stopping{false};

  std::mutex mailbox_mutex;
  std::vector<std::function<void()>> mailbox;

  void control(int operation, int fd, std::uint32_t events, std::uint64_t tag) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = tag;
    if (::epoll_ctl(epoll.get(), operation, fd, &event) != 0) fail("epoll_ctl");
  }

  void wake() noexcept {
    const std::uint64_t one = 1;
    // Fails only when the counter is full, and then the loop wakes up anyway.
    [[maybe_unused]] const auto written = ::write(wakeup.get(), &one, sizeof one);
  }

  // What callbacks asked to run after the event, until nothing is left.
  void settle() {
    while (!deferred.empty() || !after_event.empty()) {
      for (auto& task : std::exchange(deferred, {}))
        task();
      run_after_event();
    }
  }

  void run_after_event() {
    // By index: work may request more, and a destroyed object leaves a null behind.
    for (std::size_t i = 0; i < after_event.size(); ++i) {
      AfterEvent* const item = std::exchange(after_event[i], nullptr);
      if (item == nullptr) continue;
      item->requested_ = false;
      item->work_();
    }
    after_event.clear();
  }

  void drain_mailbox() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wakeup.get(), &count, sizeof count);
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mailbox_mutex);
      tasks.swap(mailbox);
    }
    for (auto& task : tasks) {
      task();
      settle();
    }
  }

  // Timers that were due when the turn began; one that a callback adds waits for the next turn.
  void run_timers() {
    const TimerId newest = timers.last_id();
    while (timers.next_due() <= now && timers.next_id() <= newest) {
      timers.take_next()();
      settle();
    }
  }

  using Events = std::array<epoll_event, kEventsPerTurn>;

  [[nodiscard]] int look(Events& events, std::chrono::milliseconds at_most) const {
    const int ready =
        ::epoll_wait(epoll.get(), events.data(), kEventsPerTurn, static_cast<int>(at_most.count()));
    if (ready < 0 && errno != EINTR) fail("epoll_wait");
    return std::max(ready, 0);
  }

  // How long a wait that begins at `start` may sleep.
  [[nodiscard]] std::chrono::milliseconds longest_sleep(TimePoint start, std::chrono::milliseconds at_most) {
    const TimePoint due = timers.next_due();
    if (due == TimePoint::max()) return at_most;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - start);
    return std::clamp(left, std::chrono::milliseconds(0), at_most);
  }

  // Since the last wait ended.
  void count_busy_until(TimePoint start) {
    busy += start - now;
    if (told_busy != nullptr)
      told_busy->store(static_cast<std::uint64_t>(busy.count()), std::memory_order_relaxed);
    if (wakeups) wakeups->look(start, busy);
  }

  [[nodiscard]] int wait(Events& events, std::chrono::milliseconds at_most) {
    const TimePoint start = Clock::now();
    count_busy_until(start);
    Patience& patience = expected > 0 ? answers : requests;
    const auto longest = longest_sleep(start, at_most);
    const auto polled = std::min<Patience::Time>(patience.window(woken_by_event), longest);
    int ready = 0;
    const auto found = [&] { return (ready = look(events, std::chrono::milliseconds(0))) > 0; };
    if (patience.poll(start, polled, found)) return ready;
    ready = look(events, longest);
    if (longest.count() > 0) patience.slept(Clock::now() - start);
    return ready;
  }

  void turn(std::chrono::milliseconds at_most) {
    settle();
    Events events;
    const int ready = wait(events, at_most);
    woken_by_event = ready > 0;
    now = Clock::now();
    for (int i = 0; i < ready; ++i) {
      dispatch(events[static_cast<std::size_t>(i)]);
    }
    run_timers();
  }

  void dispatch(const epoll_event& event) {
    if (event.data.u64 == kMailboxTag) {
      drain_mailbox();
    } else if (FdHandler* const handler = handlers.find(event.data.u64)) {
      handler->on_events(event.events);
      settle();
    }
  }
};

Reactor::Reactor() : impl_(std::make_unique<Impl>()) {
  if (!impl_->epoll || !impl_->wakeup) fail("reactor needs epoll and eventfd");
  impl_->control(EPOLL_CTL_ADD, impl_->wakeup.get(), EPOLLIN, kMailboxTag);
}

Reactor::~Reactor() = default;

void Reactor::add(int fd, std::uint32_t events, FdHandler& handler) {
  impl_->control(EPOLL_CTL_ADD, fd, events, impl_->handlers.add(fd, handler));
}

void Reactor::modify(int fd, std::uint32_t events) {
  impl_->control(EPOLL_CTL_MOD, fd, events, impl_->handlers.tag(fd));
}

void Reactor::remove(int fd) noexcept {
  ::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  impl_->handlers.remove(fd);
}

TimerId Reactor::call_at(TimePoint when, std::function<void()> callback) {
  return impl_->timers.add(when, std::move(callback));
}

TimerId Reactor::call_after(std::chrono::nanoseconds delay, std::function<void()> callback) {
  return call_at(Clock::now() + delay, std::move(callback));
}

void Reactor::cancel(TimerId id) noexcept {
  impl_->timers.cancel(id);
}

bool Reactor::post(std::function<void()> task) {
  bool first = false;
  {
    const std::lock_guard lock(impl_->mailbox_mutex);
    if (impl_->mailbox.size() >= kMailboxLimit) return false;
    first = impl_->mailbox.empty();
    impl_->mailbox.push_back(std::move(task));
  }
  if (first) impl_->wake();
  return true;
}

void Reactor::defer(std::function<void()> task) {
  impl_->deferred.push_back(std::move(task));
}

TimePoint Reactor::now() const noexcept {
  return impl_->now;
}

void Reactor::run() {
  impl_->now = Clock::now();
  while (!impl_->stopping.load(std::memory_order_acquire)) {
    impl_->turn(kIdleWait);
  }
}

void Reactor::run_once(std::chrono::milliseconds at_most) {
  impl_->turn(at_most);
}

void Reactor::stop() noexcept {
  impl_->stopping.store(true, std::memory_order_release);
  impl_->wake();
}

void Reactor::set_waiting(Waiting how) noexcept {
  impl_->answers = Patience(how);
  impl_->requests = Patience(how, Patience::kMostUnasked);
}

void Reactor::count_busy(std::atomic<std::uint64_t>& nanoseconds) noexcept {
  impl_->told_busy = &nanoseconds;
}

void Reactor::shorten_wakeups() {
  impl_->wakeups.emplace();
}

void Reactor::expect(int more) noexcept {
  impl_->expected += more;
}

AfterEvent::AfterEvent(Reactor& reactor, std::function<void()> work)
    : reactor_(reactor), work_(std::move(work)) {}

AfterEvent::~AfterEvent() {
  if (requested_) std::ranges::replace(reactor_.impl_->after_event, this, nullptr);
}

void AfterEvent::request() {
  if (std::exchange(requested_, true)) return;
  reactor_.impl_->after_event.push_back(this);
}

}  // namespace akv
