// Backend kv-memory: cards as maps in this process.
#include <cstring>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/bytes.hpp"
#include "card/card_set.hpp"
#include "card/counters.hpp"
#include "card/outstanding.hpp"
#include "card/registry.hpp"
#include "card/spec.hpp"

namespace akv::card {
namespace {

// Keys are digests already: their first bytes are as good as any hash.
struct KeyHash {
  std::size_t operator()(const CardKey& key) const noexcept { return load_le<std::uint64_t>(key.data()); }
};

// The values of one card, shared by all workers; the oldest leave first.
class ValueMap {
 public:
  explicit ValueMap(std::uint64_t capacity) : capacity_(capacity) {}

  IoResult store(const IoRequest& request) {
    const std::uint64_t size = request.bytes();
    if (size > capacity_) return {IoStatus::no_space, 0, 0};
    std::vector<std::byte> value(size);
    std::size_t at = 0;
    for (const iovec& vector : request.data) {
      if (vector.iov_len > 0) std::memcpy(value.data() + at, vector.iov_base, vector.iov_len);
      at += vector.iov_len;
    }
    const std::lock_guard lock(mutex_);
    erase(request.key);
    while (used_ + size > capacity_)
      erase(order_.front());
    order_.push_back(request.key);
    values_.emplace(request.key, Value{std::move(value), std::prev(order_.end())});
    used_ += size;
    return {IoStatus::ok, 0, 0};
  }

  IoResult retrieve(const CardKey& key, std::span<const iovec> data) const {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return {IoStatus::not_found, 0, 0};
    std::span<const std::byte> left = found->second.bytes;
    for (const iovec& vector : data) {
      const auto piece = left.first(std::min(left.size(), vector.iov_len));
      if (!piece.empty()) std::memcpy(vector.iov_base, piece.data(), piece.size());
      left = left.subspan(piece.size());
    }
    return {IoStatus::ok, 0, static_cast<std::uint32_t>(found->second.bytes.size())};
  }

  IoResult exist(const CardKey& key) const {
    const std::lock_guard lock(mutex_);
    return {values_.contains(key) ? IoStatus::ok : IoStatus::not_found, 0, 0};
  }

  IoResult remove(const CardKey& key) {
    const std::lock_guard lock(mutex_);
    return {erase(key) ? IoStatus::ok : IoStatus::not_found, 0, 0};
  }

 private:
  struct Value {
    std::vector<std::byte> bytes;
    std::list<CardKey>::iterator position;
  };

  bool erase(const CardKey& key) {
    const auto found = values_.find(key);
    if (found == values_.end()) return false;
    used_ -= found->second.bytes.size();
    const auto position = found->second.position;
    values_.erase(found);
    order_.erase(position);
    return true;
  }

  const std::uint64_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_map<CardKey, Value, KeyHash> values_;
  std::list<CardKey> order_;
  std::uint64_t used_{0};
};

// Answers after the event in which a request was submitted, as a real card would.
class MemoryQueue final : public IoQueue {
 public:
  MemoryQueue(Reactor& reactor, ValueMap& values, const MemoryCardConfig& config)
      : values_(values), config_(config), answer_(reactor, [this] { answer_waiting(); }) {
    waiting_.reserve(config.queue_depth);
    answering_.reserve(config.queue_depth);
  }

  [[nodiscard]] bool ready() const noexcept override { return open_; }
  [[nodiscard]] std::uint32_t max_value_bytes() const noexcept override { return config_.max_value_bytes; }
  [[nodiscard]] std::uint32_t inflight() const noexcept override {
    return static_cast<std::uint32_t>(counters_.inflight.get());
  }
  void report_corrupt() noexcept override {}  // no card is to blame: the memory is this process' own
  [[nodiscard]] bool submit(IoRequest& request) noexcept override {
    if (!open_ || inflight() >= config_.queue_depth) return false;
    waiting_.push_back(&request);
    counters_.inflight.add();
    answer_.request();
    return true;
  }

  // On the queue's thread: everything that waits is answered with disconnected.
  void close() noexcept {
    open_ = false;
    answer_waiting();
  }
  [[nodiscard]] const QueueCounters& counters() const noexcept { return counters_; }

 private:
  void answer_waiting() noexcept {
    std::swap(answering_, waiting_);
    for (IoRequest* const request : answering_) {
      const IoResult result = open_ ? execute(*request) : IoResult{IoStatus::disconnected, 0, 0};
      if (open_) counters_.count(request->op, result.status, moved_bytes(*request, result));
      request->completed(result);
      counters_.inflight.subtract(1);
      request->released();
    }
    answering_.clear();
  }

  [[nodiscard]] static std::uint64_t moved_bytes(const IoRequest& request, const IoResult& result) noexcept {
    const std::uint64_t size = request.bytes();
    return request.op == IoOp::retrieve ? std::min<std::uint64_t>(size, result.value_size) : size;
  }

  [[nodiscard]] IoResult execute(IoRequest& request) noexcept {
    switch (request.op) {
      case IoOp::store:
        if (request.bytes() > config_.max_value_bytes) return {IoStatus::too_large, 0, 0};
        request.sending();
        return store(request);
      case IoOp::retrieve:
        return values_.retrieve(request.key, request.data);
      case IoOp::exist:
        return values_.exist(request.key);
      case IoOp::remove:
        return values_.remove(request.key);
    }
    return {};
  }

  [[nodiscard]] IoResult store(const IoRequest& request) noexcept {
    try {
      return values_.store(request);
    } catch (const std::bad_alloc&) {
      return {IoStatus::no_space, 0, 0};
    }
  }

  ValueMap& values_;
  const MemoryCardConfig& config_;
  QueueCounters counters_;
  bool open_{true};
  std::vector<IoRequest*> waiting_;
  std::vector<IoRequest*> answering_;
  AfterEvent answer_;
};

struct MemoryCard {
  MemoryCard(CardSpec wanted, const std::vector<Reactor*>& workers, const MemoryCardConfig& settings)
      : spec(std::move(wanted)), config(settings), values(settings.capacity_bytes) {
    for (Reactor* const worker : workers) {
      queues.push_back(std::make_unique<MemoryQueue>(*worker, values, config));
    }
  }

  CardSpec spec;
  const MemoryCardConfig config;
  ValueMap values;
  std::vector<std::unique_ptr<MemoryQueue>> queues;
};

class MemoryCardSet final : public CardSet {
 public:
  MemoryCardSet(std::vector<Reactor*> workers, MemoryCardConfig config)
      : workers_(std::move(workers)),
        config_(config),
        registry_(std::make_shared<Registry<MemoryCard>>(workers_.size())),
        closing_(std::make_shared<Outstanding>()) {}
  ~MemoryCardSet() override { stop_at_destruction(*this); }

  void apply(const std::vector<CardSpec>& cards) override {
    check_specs(cards);
    std::map<std::string, CardSpec> wanted;
    for (const CardSpec& card : cards)
      wanted.emplace(card.serial, card);
    const std::lock_guard lock(mutex_);
    std::erase_if(cards_, [&](const auto& entry) {
      const auto found = wanted.find(entry.first);
      const bool keep = found != wanted.end() && found->second.nqn == entry.second->spec.nqn &&
                        found->second.uuid == entry.second->spec.uuid;
      if (!keep) take_out(entry.second);
      return !keep;
    });
    for (const auto& [serial, spec] : wanted) {
      if (!cards_.contains(serial)) put_in(spec);
      cards_.at(serial)->spec.paths = spec.paths;
    }
  }

  [[nodiscard]] IoQueue* queue(std::size_t worker, std::string_view serial) noexcept override {
    MemoryCard* const card = registry_->find(worker, serial);
    return card == nullptr ? nullptr : card->queues[worker].get();
  }

  [[nodiscard]] std::optional<std::size_t> serving_worker(std::size_t worker,
                                                          std::string_view serial) noexcept override {
    if (registry_->find(worker, serial) == nullptr) return std::nullopt;
    return worker;
  }

  [[nodiscard]] std::vector<CardSnapshot> status() const override {
    const std::lock_guard lock(mutex_);
    std::vector<CardSnapshot> all;
    for (const auto& [serial, card] : cards_) {
      CardSnapshot& snapshot = all.emplace_back();
      snapshot.serial = serial;
      snapshot.state = CardState::live;
      snapshot.path = "memory";
      snapshot.queues = static_cast<std::uint32_t>(card->queues.size());
      snapshot.max_value_bytes = config_.max_value_bytes;
      for (const auto& queue : card->queues)
        queue->counters().add_to(snapshot);
    }
    return all;
  }

  [[nodiscard]] bool stop(std::chrono::milliseconds deadline) override {
    apply({});
    return closing_->wait_for_none(deadline);
  }

 private:
  void put_in(const CardSpec& spec) {
    const auto card = std::make_shared<MemoryCard>(spec, workers_, config_);
    cards_.emplace(spec.serial, card);
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
      post_patiently(*workers_[worker], [registry = registry_, worker, serial = spec.serial, card] {
        registry->insert(worker, serial, card);
      });
    }
  }

  void take_out(const std::shared_ptr<MemoryCard>& card) {
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
      closing_->add();
      post_patiently(*workers_[worker], [registry = registry_, closing = closing_, worker, card] {
        registry->erase(worker, card->spec.serial, card.get());
        card->queues[worker]->close();
        closing->done();
      });
    }
  }

  const std::vector<Reactor*> workers_;
  const MemoryCardConfig config_;
  const std::shared_ptr<Registry<MemoryCard>> registry_;
  const std::shared_ptr<Outstanding> closing_;
  mutable std::mutex mutex_;  // control thread and status readers
  std::map<std::string, std::shared_ptr<MemoryCard>> cards_;
};

}  // namespace

std::unique_ptr<CardSet> make_memory_card_set(std::vector<Reactor*> workers, MemoryCardConfig config) {
  return std::make_unique<MemoryCardSet>(std::move(workers), config);
}

}  // namespace akv::card
