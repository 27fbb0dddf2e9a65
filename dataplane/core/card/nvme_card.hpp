// One card of the set: what its controller, on one worker, and its queues, on every worker, share.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/reactor.hpp"
#include "card/bring_up.hpp"
#include "card/card_set.hpp"
#include "card/card_status.hpp"
#include "card/trouble.hpp"

namespace akv::card {

class Controller;
class NvmeIoQueue;

// Held by shared pointers of the set and of every posted task. The controller is touched on the owner's
// thread alone, queues[w] on worker w's; between them there are only posted tasks and the atomics below.
class NvmeCard : public std::enable_shared_from_this<NvmeCard> {
 public:
  NvmeCard(const CardSpec& spec, std::shared_ptr<const NvmeCardConfig> config, std::vector<Reactor*> workers,
           std::size_t owner, std::function<void()> on_stopped);
  ~NvmeCard();
  NvmeCard(const NvmeCard&) = delete;
  NvmeCard& operator=(const NvmeCard&) = delete;

  // Runs `task` on worker `to`, called on worker `from`: tried again a little later while the mailbox is
  // full.
  void post(std::size_t from, std::size_t to, std::function<void()> task);

  [[nodiscard]] CardSnapshot snapshot() const;

  const std::string serial;
  const std::string nqn;
  const std::string uuid;
  const std::shared_ptr<const NvmeCardConfig> config;
  const std::vector<Reactor*> workers;
  const std::size_t owner;
  const Identity identity;

  // The attempt that is in service; 0: none, and every queue refuses from this moment on.
  std::atomic<std::uint64_t> live_generation{0};
  std::atomic<std::uint32_t> strikes{0};  // timeouts in a row, over all queues
  std::atomic<std::uint64_t> serving{0};  // bit w: worker w's queue is connected
  std::atomic<std::uint32_t> max_value_bytes{0};
  RecentTrouble recent;
  CardStatus status;

  std::unique_ptr<Controller> controller;
  std::vector<std::unique_ptr<NvmeIoQueue>> queues;
};

}  // namespace akv::card
