// A set of NVMe cards on worker threads, with deadlines short enough for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "card_support.hpp"

namespace akv::card::test {

using std::chrono::milliseconds;

inline NvmeCardConfig quick_config() {
  NvmeCardConfig config;
  config.host_nqn = "nqn.2024-01.io.akv:host";
  config.host_uuid = "01234567-89ab-cdef-0123-456789abcdef";
  config.connect_timeout = milliseconds(5000);
  config.io_timeout = milliseconds(10000);
  config.keep_alive = milliseconds(10000);
  config.backoff_first = milliseconds(5);
  config.backoff_cap = milliseconds(40);
  return config;
}

// What both sides may ask of digests; the parameter of tests that move values.
struct Digests {
  DigestPolicy header;
  DigestPolicy data;
};

inline NvmeCardConfig quick_config(const Digests& digests) {
  NvmeCardConfig config = quick_config();
  config.header_digest = digests.header;
  config.data_digest = digests.data;
  return config;
}

class NvmeCards {
 public:
  explicit NvmeCards(NvmeCardConfig config = quick_config(), std::size_t worker_count = 2)
      : workers(worker_count), set(make_nvme_card_set(workers.reactors(), std::move(config))) {}
  ~NvmeCards() { EXPECT_TRUE(set->stop(kPatience)); }
  NvmeCards(const NvmeCards&) = delete;
  NvmeCards& operator=(const NvmeCards&) = delete;

  [[nodiscard]] bool submit(Request& request, const std::string& serial = "CARD0", std::size_t worker = 0) {
    return workers.call(worker, [&] {
      IoQueue* const queue = set->queue(worker, serial);
      return queue != nullptr && queue->submit(request);
    });
  }
  IoResult run(Request& request, const std::string& serial = "CARD0", std::size_t worker = 0) {
    EXPECT_TRUE(submit(request, serial, worker));
    return request.wait();
  }
  [[nodiscard]] bool ready(std::size_t worker, const std::string& serial = "CARD0") {
    return workers.call(worker, [&] {
      IoQueue* const queue = set->queue(worker, serial);
      return queue != nullptr && queue->ready();
    });
  }
  [[nodiscard]] CardSnapshot snapshot(const std::string& serial = "CARD0") {
    for (const CardSnapshot& card : set->status()) {
      if (card.serial == serial) return card;
    }
    ADD_FAILURE() << "no card " << serial;
    return {};
  }

  WorkerThreads workers;
  std::unique_ptr<CardSet> set;
};

}  // namespace akv::card::test
