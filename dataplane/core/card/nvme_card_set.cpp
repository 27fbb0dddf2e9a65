// Cards over NVMe/TCP: one controller a card, one I/O queue a worker and card.
#include <bit>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "card/card_set.hpp"
#include "card/controller.hpp"
#include "card/io_queue.hpp"
#include "card/nvme_card.hpp"
#include "card/outstanding.hpp"
#include "card/registry.hpp"
#include "card/spec.hpp"
#include "card/uuid.hpp"

namespace akv::card {
namespace {

constexpr std::size_t kMaxWorkers = 64;  // bits of NvmeCard::serving
constexpr std::uint32_t kMaxDepth = 1023;

void check_config(const std::vector<Reactor*>& workers, const NvmeCardConfig& config) {
  const auto demand = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
  };
  demand(!workers.empty() && workers.size() <= kMaxWorkers, "cards need 1 to 64 workers");
  demand(!config.host_nqn.empty() && config.host_nqn.size() <= nvme::kNqnMaxBytes,
         "host_nqn must have 1 to 223 bytes");
  demand(parse_uuid(config.host_uuid).has_value(), "host_uuid is not a UUID");
  demand(config.queue_depth >= 1 && config.queue_depth <= kMaxDepth, "queue_depth must be 1 to 1023");
  demand(config.io_timeout.count() > 0, "io_timeout must be positive");
  demand(config.io_timeout_strikes > 0, "io_timeout_strikes must be positive");
  demand(config.connect_timeout.count() > 0, "connect_timeout must be positive");
  demand(config.keep_alive.count() >= 2 && config.keep_alive.count() <= UINT32_MAX,
         "keep_alive must be 2 ms to 49 days");
  demand(config.max_inflight_bytes > 0, "max_inflight_bytes must be positive");
  demand(config.backoff_first.count() > 0 && config.backoff_first <= config.backoff_cap,
         "backoff_first must be positive and at most backoff_cap");
}

class NvmeCardSet final : public CardSet {
 public:
  NvmeCardSet(std::vector<Reactor*> workers, NvmeCardConfig config)
      : workers_(std::move(workers)),
        config_(std::make_shared<const NvmeCardConfig>(std::move(config))),
        registry_(std::make_shared<Registry<NvmeCard>>(workers_.size())),
        closing_(std::make_shared<Outstanding>()) {}
  ~NvmeCardSet() override { stop_at_destruction(*this); }

  void apply(const std::vector<CardSpec>& cards) override {
    check_specs(cards);
    std::map<std::string, CardSpec> wanted;
    for (const CardSpec& card : cards)
      wanted.emplace(card.serial, card);
    const std::lock_guard lock(mutex_);
    for (auto entry = cards_.begin(); entry != cards_.end();) {
      const auto found = wanted.find(entry->first);
      if (found != wanted.end() && same_identity(found->second, *entry->second.card)) {
        ++entry;
        continue;
      }
      const auto card = entry->second.card;
      entry = cards_.erase(entry);
      take_out(card);
    }
    for (const auto& [serial, spec] : wanted) {
      const auto found = cards_.find(serial);
      if (found == cards_.end()) {
        put_in(spec);
      } else if (found->second.paths != spec.paths) {
        change_paths(found->second, spec.paths);
      }
    }
  }

  [[nodiscard]] IoQueue* queue(std::size_t worker, std::string_view serial) noexcept override {
    NvmeCard* const card = registry_->find(worker, serial);
    return card == nullptr ? nullptr : card->queues[worker].get();
  }

  [[nodiscard]] std::optional<std::size_t> serving_worker(std::size_t worker,
                                                          std::string_view serial) noexcept override {
    const NvmeCard* const card = registry_->find(worker, serial);
    if (card == nullptr) return std::nullopt;
    std::uint64_t serving = card->serving.load(std::memory_order_relaxed);
    if (serving == 0) return std::nullopt;
    if ((serving >> worker & 1U) != 0) return worker;
    // Workers without a queue spread over those that have one.
    for (std::size_t skip = worker % static_cast<std::size_t>(std::popcount(serving)); skip > 0; --skip) {
      serving &= serving - 1;
    }
    return static_cast<std::size_t>(std::countr_zero(serving));
  }

  [[nodiscard]] std::vector<CardSnapshot> status() const override {
    const std::lock_guard lock(mutex_);
    std::vector<CardSnapshot> all;
    for (const auto& [serial, entry] : cards_)
      all.push_back(entry.card->snapshot());
    return all;
  }

  [[nodiscard]] bool stop(std::chrono::milliseconds deadline) override {
    apply({});
    return closing_->wait_for_none(deadline);
  }

 private:
  struct Member {
    std::shared_ptr<NvmeCard> card;
    std::vector<CardPath> paths;
  };

  [[nodiscard]] static bool same_identity(const CardSpec& spec, const NvmeCard& card) {
    return spec.nqn == card.nqn && spec.uuid == card.uuid;
  }

  void put_in(const CardSpec& spec) {
    const std::size_t owner = next_owner_++ % workers_.size();
    const auto card =
        std::make_shared<NvmeCard>(spec, config_, workers_, owner, [closing = closing_] { closing->done(); });
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
      post_patiently(*workers_[worker],
                     [registry = registry_, worker, card] { registry->insert(worker, card->serial, card); });
    }
    post_patiently(*workers_[owner], [card, paths = spec.paths] { card->controller->start(paths); });
    cards_.emplace(spec.serial, Member{card, spec.paths});
  }

  void change_paths(Member& member, const std::vector<CardPath>& paths) {
    post_patiently(*workers_[member.card->owner],
                   [card = member.card, paths] { card->controller->set_paths(paths); });
    member.paths = paths;
  }

  void take_out(const std::shared_ptr<NvmeCard>& card) {
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
      closing_->add();
      post_patiently(*workers_[worker], [registry = registry_, closing = closing_, worker, card] {
        registry->erase(worker, card->serial, card.get());
        closing->done();
      });
    }
    closing_->add();  // taken back by the card's on_stopped
    post_patiently(*workers_[card->owner], [card] { card->controller->stop(); });
  }

  const std::vector<Reactor*> workers_;
  const std::shared_ptr<const NvmeCardConfig> config_;
  const std::shared_ptr<Registry<NvmeCard>> registry_;
  const std::shared_ptr<Outstanding> closing_;
  std::size_t next_owner_{0};
  mutable std::mutex mutex_;  // control thread and status readers
  std::map<std::string, Member> cards_;
};

}  // namespace

std::unique_ptr<CardSet> make_nvme_card_set(std::vector<Reactor*> workers, NvmeCardConfig config) {
  check_config(workers, config);
  return std::make_unique<NvmeCardSet>(std::move(workers), std::move(config));
}

}  // namespace akv::card
