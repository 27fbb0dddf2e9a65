// Cards of the gateway's tests: they answer when, and as, the test says.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/reactor.hpp"
#include "card/card_set.hpp"

namespace akv::gateway::test {

using Bytes = std::vector<std::byte>;

// A card's queue whose answers come when, and as, the test says.
class ScriptedQueue final : public card::IoQueue {
 public:
  explicit ScriptedQueue(Reactor& reactor) : reactor_(reactor) {}

  [[nodiscard]] bool ready() const noexcept override { return is_ready; }
  [[nodiscard]] std::uint32_t max_value_bytes() const noexcept override { return max_value; }
  [[nodiscard]] std::uint32_t inflight() const noexcept override {
    return static_cast<std::uint32_t>(held.size() + late.size());
  }
  void report_corrupt() noexcept override { ++corrupt_reports; }
  [[nodiscard]] bool submit(card::IoRequest& request) noexcept override {
    if (!is_ready || held.size() >= depth) return false;
    held.push_back(&request);
    most_held = std::max(most_held, held.size());
    ++submitted[request.op];
    if (request.op == card::IoOp::store && !slow) {
      unread_.insert(&request);
      reactor_.defer([this, &request] { tell(request); });
    }
    if (!hold) reactor_.defer([this] { answer_all(); });
    return true;
  }

  // Where `slow`: the value of the store `index` is going to be read.
  void read(std::size_t index) { held.at(index)->sending(); }
  void answer_all() {
    while (!held.empty())
      answer(0);
  }
  // The card does what command `index` asks for.
  void answer(std::size_t index) {
    card::IoRequest* const request = take(index);
    const card::IoResult result = perform(*request);
    written_.erase(request);
    request->completed(result);
    request->released();
  }
  // The card has sent the first `bytes` of the value that command `index` asks for.
  void arrive(std::size_t index, std::size_t bytes) {
    deliver(*held.at(index), values.at(held.at(index)->key), bytes);
  }
  void fail(std::size_t index, card::IoStatus status) {
    card::IoRequest* const request = take(index);
    written_.erase(request);
    unread_.erase(request);
    request->completed({.status = status});
    request->released();
  }
  // The reply's deadline passes; the card still has the buffers.
  void time_out(std::size_t index) {
    card::IoRequest* const request = take(index);
    request->completed({.status = card::IoStatus::timeout});
    late.push_back(request);
  }
  // A late answer arrives in the buffers after all; then the card lets go.
  void release_late() {
    card::IoRequest* const request = late.front();
    late.pop_front();
    if (request->op == card::IoOp::retrieve) {
      if (const auto found = values.find(request->key); found != values.end())
        write(*request, found->second, found->second.size());
      written_.erase(request);
    } else {
      static_cast<void>(perform(*request));
    }
    request->released();
  }

  std::map<card::CardKey, Bytes> values;
  std::deque<card::IoRequest*> held;
  std::deque<card::IoRequest*> late;
  std::map<card::IoOp, int> submitted;
  std::uint64_t corrupt_reports{0};
  std::size_t most_held{0};
  std::uint32_t max_value{4U << 20U};
  std::size_t depth{1024};
  bool is_ready{true};
  bool hold{false};
  bool slow{false};

 private:
  card::IoRequest* take(std::size_t index) {
    card::IoRequest* const request = held.at(index);
    held.erase(held.begin() + static_cast<long>(index));
    return request;
  }

  // A store's value is going to be read, if it was not yet.
  void tell(card::IoRequest& request) {
    if (unread_.erase(&request) != 0) request.sending();
  }

  card::IoResult perform(card::IoRequest& request) {
    const auto found = values.find(request.key);
    const bool there = found != values.end();
    switch (request.op) {
      case card::IoOp::store: {
        tell(request);
        Bytes value;
        for (const iovec& part : request.data) {
          const auto* const from = static_cast<const std::byte*>(part.iov_base);
          value.insert(value.end(), from, from + part.iov_len);
        }
        values[request.key] = std::move(value);
        return {.status = card::IoStatus::ok};
      }
      case card::IoOp::retrieve:
        return there ? retrieve(request, found->second) : card::IoResult{.status = card::IoStatus::not_found};
      case card::IoOp::exist:
        return {.status = there ? card::IoStatus::ok : card::IoStatus::not_found};
      case card::IoOp::remove:
        values.erase(request.key);
        return {.status = there ? card::IoStatus::ok : card::IoStatus::not_found};
    }
    return {};
  }

  // What of the value's first `bytes` was not written before, as far as there is room; gives how much is in
  // place then.
  std::size_t write(const card::IoRequest& request, std::span<const std::byte> value, std::size_t bytes) {
    std::size_t& written = written_[&request];
    std::size_t begin = 0;
    for (const iovec& part : request.data) {
      const std::size_t end = std::min({begin + part.iov_len, bytes, value.size()});
      if (written >= begin && written < end) {
        auto* const to = static_cast<std::byte*>(part.iov_base) + (written - begin);
        std::memcpy(to, value.data() + written, end - written);
        written = end;
      }
      begin += part.iov_len;
    }
    return written;
  }
  void deliver(card::IoRequest& request, std::span<const std::byte> value, std::size_t bytes) {
    const std::size_t before = written_[&request];
    const std::size_t in_place = write(request, value, bytes);
    if (in_place > before) request.arrived(static_cast<std::uint32_t>(in_place));
  }

  // In three parts, the first of which does not even have all of the envelope.
  card::IoResult retrieve(card::IoRequest& request, const Bytes& value) {
    for (const std::size_t bytes : {std::size_t{40}, value.size() / 2, value.size()})
      deliver(request, value, bytes);
    return {.status = card::IoStatus::ok, .value_size = static_cast<std::uint32_t>(value.size())};
  }

  Reactor& reactor_;
  std::set<card::IoRequest*> unread_;
  std::map<const card::IoRequest*, std::size_t> written_;  // bytes of a retrieve's destination
};

// One card "C0" in slot 0, with a queue for one worker.
class ScriptedCards final : public card::CardSet {
 public:
  ScriptedCards(Reactor& reactor, std::size_t owner) : queue_of_card(reactor), owner_(owner) {}

  void apply(const std::vector<card::CardSpec>& /*cards*/) override {}
  [[nodiscard]] card::IoQueue* queue(std::size_t worker, std::string_view serial) noexcept override {
    return worker == owner_ && serial == "C0" && !gone ? &queue_of_card : nullptr;
  }
  [[nodiscard]] std::optional<std::size_t> serving_worker(std::size_t /*worker*/,
                                                          std::string_view serial) noexcept override {
    return serial == "C0" && !gone ? std::optional(owner_) : std::nullopt;
  }
  [[nodiscard]] std::vector<card::CardSnapshot> status() const override { return {}; }
  [[nodiscard]] bool stop(std::chrono::milliseconds /*deadline*/) override { return true; }

  ScriptedQueue queue_of_card;
  bool gone{false};

 private:
  std::size_t owner_;
};

}  // namespace akv::gateway::test
