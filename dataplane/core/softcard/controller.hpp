// One NVMe controller: what a host gets by Connect on the admin queue.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "nvme/connect.hpp"
#include "nvme/registers.hpp"
#include "softcard/config.hpp"

namespace akv::softcard {

class Connection;

class Controller {
 public:
  static constexpr std::size_t kHeldAsyncEvents = 4;      // AERL + 1
  static constexpr std::uint32_t kKeepAliveUnitMs = 100;  // KAS 1

  Controller(std::uint16_t cntlid, const CardConfig& config, const nvme::ConnectData& host,
             Connection* admin);

  [[nodiscard]] std::uint16_t cntlid() const noexcept { return cntlid_; }
  [[nodiscard]] Connection* admin() const noexcept { return admin_; }
  [[nodiscard]] const std::string& hostnqn() const noexcept { return hostnqn_; }
  [[nodiscard]] bool same_host(const nvme::ConnectData& data) const;

  // Properties (NVMe Base 2.0, 3.1.3).
  [[nodiscard]] nvme::Cap cap() const noexcept;
  [[nodiscard]] nvme::Cc cc() const noexcept { return cc_; }
  [[nodiscard]] nvme::Csts csts() const noexcept { return csts_; }
  // What writing CC asks for; the caller ends the I/O queues at a reset.
  enum class CcChange : std::uint8_t { none, enabled, reset, shut_down };
  CcChange write_cc(std::uint32_t value) noexcept;

  // Keep alive. 0 ms switches the timer off.
  void set_keep_alive(std::uint32_t kato_ms, TimePoint now) noexcept;
  [[nodiscard]] std::uint32_t kato_ms() const noexcept { return kato_ms_; }
  void alive(TimePoint now) noexcept { last_alive_ = now; }
  [[nodiscard]] bool keep_alive_expired(TimePoint now) const noexcept;

  // I/O queues by queue id.
  [[nodiscard]] std::uint16_t granted_queues() const noexcept { return granted_queues_; }
  std::uint16_t grant_queues(std::uint32_t wanted) noexcept;
  [[nodiscard]] bool has_queue(std::uint16_t qid) const { return queues_.contains(qid); }
  void add_queue(std::uint16_t qid, Connection& connection) { queues_[qid] = &connection; }
  void remove_queue(std::uint16_t qid) { queues_.erase(qid); }
  [[nodiscard]] std::map<std::uint16_t, Connection*> take_queues() { return std::exchange(queues_, {}); }
  [[nodiscard]] Connection* queue(std::uint16_t qid) const;

  // Asynchronous Event Requests held; this card has no events to tell yet.
  [[nodiscard]] bool hold_async_event(std::uint16_t cid);
  [[nodiscard]] bool drop_async_event(std::uint16_t cid);

  std::uint32_t async_event_config{0};
  std::uint16_t command_set_profile{0};

 private:
  std::uint16_t cntlid_;
  std::uint16_t max_queues_;
  std::uint16_t granted_queues_;
  nvme::Uuid hostid_;
  std::string hostnqn_;
  Connection* admin_;
  nvme::Cc cc_{};
  nvme::Csts csts_{};
  std::uint32_t kato_ms_{0};
  TimePoint last_alive_{};
  std::map<std::uint16_t, Connection*> queues_;
  std::deque<std::uint16_t> held_async_events_;
};

}  // namespace akv::softcard
