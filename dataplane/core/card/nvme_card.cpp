#include "card/nvme_card.hpp"

#include <bit>
#include <chrono>
#include <utility>

#include "card/controller.hpp"
#include "card/io_queue.hpp"
#include "card/uuid.hpp"

namespace akv::card {
namespace {

Identity identity_of(const CardSpec& spec, const NvmeCardConfig& config) {
  return {.host_nqn = config.host_nqn,
          .host_id = parse_uuid(config.host_uuid).value_or(nvme::Uuid{}),
          .subsystem_nqn = spec.nqn,
          .serial = spec.serial,
          .namespace_uuid = parse_uuid(spec.uuid)};
}

void post_or_retry(Reactor& from, Reactor& to, std::function<void()> task) {
  if (to.post(task)) return;
  [[maybe_unused]] const TimerId retry = from.call_after(
      std::chrono::milliseconds(1),
      [&from, &to, again = std::move(task)]() mutable { post_or_retry(from, to, std::move(again)); });
}

}  // namespace

NvmeCard::NvmeCard(const CardSpec& spec, std::shared_ptr<const NvmeCardConfig> shared_config,
                   std::vector<Reactor*> all_workers, std::size_t owning_worker,
                   std::function<void()> on_stopped)
    : serial(spec.serial),
      nqn(spec.nqn),
      uuid(spec.uuid),
      config(std::move(shared_config)),
      workers(std::move(all_workers)),
      owner(owning_worker),
      identity(identity_of(spec, *config)),
      status(spec.serial) {
  controller = std::make_unique<Controller>(*this, std::move(on_stopped));
  for (std::size_t worker = 0; worker < workers.size(); ++worker) {
    queues.push_back(std::make_unique<NvmeIoQueue>(*this, worker));
  }
}

NvmeCard::~NvmeCard() = default;

void NvmeCard::post(std::size_t from, std::size_t to, std::function<void()> task) {
  post_or_retry(*workers[from], *workers[to], std::move(task));
}

CardSnapshot NvmeCard::snapshot() const {
  CardSnapshot snapshot;
  snapshot.serial = serial;
  snapshot.queues = static_cast<std::uint32_t>(std::popcount(serving.load(std::memory_order_relaxed)));
  snapshot.max_value_bytes = max_value_bytes.load(std::memory_order_relaxed);
  status.add_to(snapshot);
  if (snapshot.state == CardState::live) snapshot.trouble = recent.at(monotonic_now());
  for (const auto& queue : queues)
    queue->counters().add_to(snapshot);
  return snapshot;
}

}  // namespace akv::card
