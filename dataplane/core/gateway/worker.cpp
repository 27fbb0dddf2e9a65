#include "gateway/worker.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/events.hpp"
#include "kv/hashing.hpp"

namespace akv::gateway {
namespace {

constexpr auto kCourierRetry = std::chrono::milliseconds(1);

// Bytes of a region that nothing may name while a late card may write there. A PUT's are the client's again
// with its reply: the card only reads them, and what it stores of changed ones fails its checksum.
bool is_lent(const Batch& batch, const Entry& entry) noexcept {
  return entry.quarantined && entry.region != nullptr && batch.op == BatchOp::get;
}

}  // namespace

Worker::Courier::~Courier() {
  own_.cancel(retry_);
}

void Worker::Courier::send(std::function<void()> task) {
  unsent_.push_back(std::move(task));
  if (retry_ == 0) push();
}

void Worker::Courier::push() {
  retry_ = 0;
  while (!unsent_.empty()) {
    if (!other_.post(unsent_.front())) {
      retry_ = own_.call_after(kCourierRetry, [this] { push(); });
      return;
    }
    unsent_.pop_front();
  }
}

Worker::Worker(std::size_t index, SharedState& shared)
    : index_(index),
      shared_(shared),
      cache_(shared.cache, shared.counters[index]),
      bury_(reactor_, [this] { ended_.clear(); }) {
  reactor_.count_busy(shared_.counters[index_].cell(Counter::busy_ns));
}

Worker::~Worker() {
  close_sessions();
}

void Worker::connect(card::CardSet& cards, std::vector<Worker*> peers) {
  cards_ = &cards;
  peers_ = std::move(peers);
  for (Worker* const peer : peers_)
    couriers_.push_back(std::make_unique<Courier>(reactor_, peer->reactor_));
}

void Worker::adopt(UniqueFd socket, bool local) {
  const SessionContext context{.reactor = reactor_,
                               .shared = shared_,
                               .counters = shared_.counters[index_],
                               .host = *this,
                               .cache = cache_,
                               .worker = index_};
  try {
    auto session = std::make_unique<Session>(context, std::move(socket), local);
    session->position = sessions_.size();
    sessions_.push_back(std::move(session));
  } catch (const std::system_error& failure) {
    shared_.counters[index_].add(Counter::sessions_refused);
    log_event(Level::warning, "session_refused", {{"reason", std::string_view(failure.what())}});
  }
  wind_timer();
}

void Worker::ended(Session& session) noexcept {
  const std::size_t position = session.position;
  ended_.push_back(std::move(sessions_[position]));
  if (position + 1 != sessions_.size()) {
    sessions_[position] = std::move(sessions_.back());
    sessions_[position]->position = position;
  }
  sessions_.pop_back();
  bury_.request();
}

void Worker::memory_taken() {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (i == index_) {
      cache_.trim();
    } else {
      couriers_[i]->send([peer = peers_[i]] { peer->cache_.trim(); });
    }
  }
}

// What is copied and under way from before a card left, or became another, is not the present one's: its lane
// takes nothing more, and a new one has none of its copies.
void Worker::set_routing(std::shared_ptr<const Routing> routing) {
  const auto before = std::exchange(routing_, std::move(routing));
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    if (is_same_card(*before, lane->first)) {
      ++lane;
    } else {
      leaving_.push_back(std::move(lane->second));
      lane = lanes_.erase(lane);
    }
  }
  forget_unused_lanes();
}

bool Worker::is_same_card(const Routing& before, std::string_view serial) const noexcept {
  const RoutableCard* const was = before.find(serial);
  const RoutableCard* const is = routing_->find(serial);
  return was != nullptr && is != nullptr && *was == *is;
}

// A batch of a worker that has not heard of the newest plan makes a lane for a card that is in none.
void Worker::forget_unused_lanes() {
  std::erase_if(leaving_, [](const auto& lane) { return lane->idle(); });
  std::erase_if(lanes_, [this](const auto& lane) {
    return lane.second->idle() && routing_->find(lane.first) == nullptr;
  });
}

void Worker::shut_down_sessions() {
  for (const auto& session : sessions_)
    session->shut_down();
}

void Worker::close_sessions() {
  while (!sessions_.empty())
    sessions_.back()->close();
}

bool Worker::idle() const noexcept {
  return std::ranges::all_of(lanes_, [](const auto& lane) { return lane.second->idle(); }) &&
         std::ranges::all_of(leaving_, [](const auto& lane) { return lane->idle(); });
}

bool Worker::serves(std::string_view serial) noexcept {
  const auto worker = cards_->serving_worker(index_, serial);
  if (!worker) return false;
  if (*worker != index_) return true;
  const card::IoQueue* const queue = cards_->queue(index_, serial);
  return queue != nullptr && queue->ready();
}

// Slots that the plan lets take dialogs and whose cards answer: a struck-out card is out at once.
kv::SlotMask Worker::routable_slots() noexcept {
  unsigned mask = 0;
  for (std::size_t slot = 0; slot < kv::kSlots; ++slot) {
    const auto& card = routing_->routable[slot];
    if (card && serves(card->serial)) mask |= 1U << slot;
  }
  return static_cast<kv::SlotMask>(mask);
}

void Worker::execute(std::shared_ptr<Batch> batch) {
  const auto slot = kv::slot_of(batch->dialog_id, routable_slots());
  if (!slot) return fail(batch, Why::no_card);
  const std::string& serial = routing_->routable[*slot]->serial;
  const auto worker = cards_->serving_worker(index_, serial);
  if (!worker) return fail(batch, Why::no_card);
  if (*worker == index_) return run_on_lane(std::move(batch), serial);
  Worker* const peer = peers_[*worker];
  couriers_[*worker]->send([peer, moved = std::move(batch), serial] { peer->run_on_lane(moved, serial); });
}

const HotBlocks* Worker::hot_blocks(std::uint64_t dialog_id) noexcept {
  const auto slot = kv::slot_of(dialog_id, routable_slots());
  if (!slot) return nullptr;
  const std::string& serial = routing_->routable[*slot]->serial;
  if (cards_->serving_worker(index_, serial) != index_) return nullptr;
  const auto lane = lanes_.find(serial);
  return lane != lanes_.end() ? &lane->second->hot() : nullptr;
}

void Worker::run_on_lane(std::shared_ptr<Batch> batch, const std::string& serial) {
  auto& lane = lanes_[serial];
  if (lane == nullptr) {
    const LaneContext context{.reactor = reactor_,
                              .cards = *cards_,
                              .worker = index_,
                              .counters = shared_.counters[index_],
                              .limits = shared_.limits,
                              .sink = *this,
                              .cache = cache_,
                              .names = shared_.names,
                              .lane = ++lanes_made_};
    lane = std::make_unique<Lane>(context, serial);
  }
  lane->submit(std::move(batch));
  wind_timer();
}

// Answers a batch that no card can take.
void Worker::fail(const std::shared_ptr<Batch>& batch, Why why) {
  Outcomes outcomes(shared_.counters[index_]);
  outcomes.fail_rest(*batch, why);
  batch->finished = true;
  finished(batch);
  drained(batch);
}

void Worker::finished(const std::shared_ptr<Batch>& batch) noexcept {
  if (batch->home == index_) return finish_here(batch);
  Worker* const home = peers_[batch->home];
  couriers_[batch->home]->send([home, batch] { home->finish_here(batch); });
}

void Worker::drained(const std::shared_ptr<Batch>& batch) noexcept {
  if (batch->home == index_) return drain_here(batch);
  Worker* const home = peers_[batch->home];
  couriers_[batch->home]->send([home, batch] { home->drain_here(batch); });
}

void Worker::finish_here(const std::shared_ptr<Batch>& batch) {
  for (const Entry& entry : batch->entries) {
    if (is_lent(*batch, entry)) entry.region->quarantine(entry.place());
    if (entry.quarantined && entry.block != arena::kNoBlock) batch->memory->leases.quarantine(entry.block);
  }
  if (batch->session != nullptr) batch->session->finished(batch);
}

void Worker::drain_here(const std::shared_ptr<Batch>& batch) {
  for (const Entry& entry : batch->entries) {
    if (is_lent(*batch, entry)) entry.region->release_quarantine(entry.place());
    if (entry.block == arena::kNoBlock) continue;
    if (entry.quarantined) batch->memory->leases.release_quarantine(entry.block);
    batch->memory->leases.unpin(entry.block);
  }
  for (const auto& region : batch->regions)
    region->unpin();
  if (batch->session != nullptr) batch->session->drained(batch);
}

void Worker::tick() {
  timer_ = 0;
  // By index from the end: a session that closes takes its own place away.
  for (std::size_t i = sessions_.size(); i-- > 0;) {
    if (i < sessions_.size()) sessions_[i]->tick();
  }
  for (const auto& [serial, lane] : lanes_) {
    if (!lane->idle()) lane->tick();
  }
  for (const auto& lane : leaving_) {
    if (!lane->idle()) lane->tick();
  }
  forget_unused_lanes();
  wind_timer();
}

// Only while there is something to look at: an idle gateway does not wake up.
void Worker::wind_timer() {
  if (timer_ != 0 || (sessions_.empty() && idle())) return;
  timer_ = reactor_.call_after(shared_.limits.tick, [this] { tick(); });
}

}  // namespace akv::gateway
