#include "softcard/controller.hpp"

#include <algorithm>

namespace akv::softcard {

Controller::Controller(std::uint16_t cntlid, const CardConfig& config, const nvme::ConnectData& host,
                       Connection* admin)
    : cntlid_(cntlid),
      max_queues_(config.max_queues),
      granted_queues_(config.max_queues),
      hostid_(host.hostid),
      hostnqn_(nvme::get_nqn(host.hostnqn)),
      admin_(admin) {}

bool Controller::same_host(const nvme::ConnectData& data) const {
  return data.hostid == hostid_ && nvme::get_nqn(data.hostnqn) == hostnqn_;
}

nvme::Cap Controller::cap() const noexcept {
  constexpr std::uint8_t ready_within = 10;  // 5 s
  return nvme::make_cap(kMaxQueueEntries - 1, ready_within, nvme::Cap::kCssIoCommandSets);
}

Controller::CcChange Controller::write_cc(std::uint32_t value) noexcept {
  const nvme::Cc before = std::exchange(cc_, nvme::Cc{value});
  if (before.enabled() && !cc_.enabled()) {
    csts_ = {};
    held_async_events_.clear();
    return CcChange::reset;
  }
  if (!before.enabled() && cc_.enabled()) {
    constexpr std::uint32_t configuration = nvme::Cc::kEntrySizes | nvme::Cc::kCssAllCommandSets;
    constexpr std::uint32_t fields = 0x00FF0000U | (7U << 4U) | (0xFU << 7U);  // entry sizes, CSS, MPS 0
    csts_.raw = (value & fields) == configuration ? nvme::Csts::kReady : nvme::Csts::kFatal;
    return CcChange::enabled;
  }
  if (!before.shutdown_requested() && cc_.shutdown_requested()) {
    csts_.raw |= nvme::Csts::kShutdownComplete;
    return CcChange::shut_down;
  }
  return CcChange::none;
}

void Controller::set_keep_alive(std::uint32_t kato_ms, TimePoint now) noexcept {
  const std::uint64_t units = (std::uint64_t{kato_ms} + kKeepAliveUnitMs - 1) / kKeepAliveUnitMs;
  kato_ms_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(units * kKeepAliveUnitMs, 0xFFFFFFFFU));
  last_alive_ = now;
}

bool Controller::keep_alive_expired(TimePoint now) const noexcept {
  return kato_ms_ != 0 && now - last_alive_ > std::chrono::milliseconds(kato_ms_);
}

std::uint16_t Controller::grant_queues(std::uint32_t wanted) noexcept {
  granted_queues_ = static_cast<std::uint16_t>(std::min<std::uint32_t>(wanted, max_queues_));
  return granted_queues_;
}

Connection* Controller::queue(std::uint16_t qid) const {
  if (qid == 0) return admin_;
  const auto found = queues_.find(qid);
  return found == queues_.end() ? nullptr : found->second;
}

bool Controller::hold_async_event(std::uint16_t cid) {
  if (held_async_events_.size() >= kHeldAsyncEvents) return false;
  held_async_events_.push_back(cid);
  return true;
}

bool Controller::drop_async_event(std::uint16_t cid) {
  return std::erase(held_async_events_, cid) > 0;
}

}  // namespace akv::softcard
