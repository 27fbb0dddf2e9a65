// The initiator against an NVMe/TCP target that no one here wrote: Linux nvmet. Run by `make lab`, which
// names the target in AKV_LAB_TRADDR, AKV_LAB_TRSVCID, AKV_LAB_NQN and AKV_LAB_SERIAL. nvmet has no key-value
// namespaces, so Connect, property access and Identify must succeed and the card must then be refused as
// having no KV namespace, never taken into service.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "card/card_set.hpp"
#include "card_support.hpp"

namespace akv::card::test {
namespace {

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  EXPECT_NE(value, nullptr) << name << " is not set; run `make lab`";
  return value == nullptr ? "" : value;
}

CardSpec target_as(const std::string& serial) {
  return {
      .serial = serial,
      .nqn = setting("AKV_LAB_NQN"),
      .uuid = "",
      .paths = {
          {.transport = "tcp", .traddr = setting("AKV_LAB_TRADDR"), .trsvcid = setting("AKV_LAB_TRSVCID")}}};
}

class LinuxTarget : public ::testing::TestWithParam<std::pair<DigestPolicy, DigestPolicy>> {
 protected:
  // The card's state once the first attempt has ended.
  CardSnapshot judge(const CardSpec& spec) {
    WorkerThreads workers(2);
    NvmeCardConfig config;
    config.host_nqn = "nqn.2014-08.org.nvmexpress:uuid:7f0c2a34-9d52-4f6e-8a0e-5b7d1c3e9f10";
    config.host_uuid = "7f0c2a34-9d52-4f6e-8a0e-5b7d1c3e9f10";
    config.connect_timeout = std::chrono::seconds{10};  // the target may be an emulated machine
    config.header_digest = GetParam().first;
    config.data_digest = GetParam().second;
    const auto set = make_nvme_card_set(workers.reactors(), config);
    set->apply({spec});
    const auto deadline = Clock::now() + kPatience;
    CardSnapshot card = set->status().at(0);
    while (card.state == CardState::connecting && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
      card = set->status().at(0);
    }
    EXPECT_TRUE(set->stop(kPatience));
    return card;
  }
};

TEST_P(LinuxTarget, IsIdentifiedAndRefusedForWantOfAKvNamespace) {
  const CardSnapshot card = judge(target_as(setting("AKV_LAB_SERIAL")));
  EXPECT_EQ(to_string(card.state), to_string(CardState::no_kv_namespace)) << card.last_error;
  EXPECT_EQ(card.queues, 0U);
}

TEST_P(LinuxTarget, AnotherSerialIsNamed) {
  const CardSnapshot card = judge(target_as("SOMEONE-ELSE"));
  EXPECT_EQ(to_string(card.state), to_string(CardState::wrong_serial)) << card.last_error;
  EXPECT_NE(card.last_error.find(setting("AKV_LAB_SERIAL")), std::string::npos) << card.last_error;
}

TEST_P(LinuxTarget, AnUnknownSubsystemIsRefusedByTheTarget) {
  CardSpec spec = target_as(setting("AKV_LAB_SERIAL"));
  spec.nqn += "-unknown";
  const CardSnapshot card = judge(spec);
  EXPECT_EQ(to_string(card.state), to_string(CardState::backoff)) << card.last_error;
  EXPECT_NE(card.last_error.find("was refused"), std::string::npos) << card.last_error;
}

INSTANTIATE_TEST_SUITE_P(Digests, LinuxTarget,
                         ::testing::Values(std::pair{DigestPolicy::off, DigestPolicy::off},
                                           std::pair{DigestPolicy::require, DigestPolicy::off},
                                           std::pair{DigestPolicy::require, DigestPolicy::require}));

}  // namespace
}  // namespace akv::card::test
