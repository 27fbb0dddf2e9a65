// NVMe/TCP (NVMe TCP Transport 1.0): one TCP connection is one queue pair.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/reactor.hpp"
#include "base/unique_fd.hpp"
#include "fabric/address.hpp"
#include "fabric/queue_pair.hpp"
#include "fabric/tcp_receiver.hpp"
#include "fabric/tcp_sender.hpp"
#include "fabric/tcp_slots.hpp"

namespace akv::fabric {

struct TcpQueuePairConfig {
  TcpAddress address;
  std::chrono::milliseconds connect_timeout{3000};  // TCP connect and ICReq/ICResp together
  std::uint32_t depth{32};                          // commands outstanding, 1..1023
  std::uint32_t in_capsule_bytes{0};                // that the target takes in a command's capsule (IOCCSZ)
  // Largest H2CData made without data digests, and largest write that goes in its capsule: either holds up
  // whatever is behind it. The target's bounds may be lower.
  std::uint32_t h2c_bytes{512U << 10U};
  DigestPolicy header_digest{DigestPolicy::off};
  DigestPolicy data_digest{DigestPolicy::off};
  std::uint8_t hpda{0};
  std::uint32_t max_r2ts{Grants::kMost};  // that a target may have open for one command, 1..4
};

class TcpQueuePair final : public QueuePair, private FdHandler, private ReceiverClient, private SenderClient {
 public:
  TcpQueuePair(Reactor& reactor, const TcpQueuePairConfig& config, QueuePairClient& client);
  ~TcpQueuePair() override;

  void start() override;
  [[nodiscard]] bool submit(const Command& command, std::uint32_t tag) noexcept override;
  [[nodiscard]] bool in_capsule(std::uint32_t bytes) const noexcept override {
    return bytes <= std::min(config_.in_capsule_bytes, config_.h2c_bytes);
  }
  [[nodiscard]] std::optional<std::uint16_t> command_id(std::uint32_t tag) const noexcept override;
  void flush() noexcept override;
  void close(const std::string& reason) noexcept override;

 private:
  enum class State : std::uint8_t { idle, connecting, greeting, open, closed };
  using Judgement = std::optional<Fault>;

  void on_events(std::uint32_t events) noexcept override;
  void finish_connect() noexcept;
  void send_ic_req() noexcept;
  Judgement on_ic_resp(const nvme::IcResp& response) override;
  Judgement on_response(const nvme::Cqe& cqe) override;
  Judgement on_r2t(const nvme::R2t& r2t) override;
  Judgement on_c2h_data(const nvme::DataPdu& pdu, std::uint32_t bytes, PayloadTarget& target) override;
  void on_payload(std::uint16_t cid, std::uint32_t end) noexcept override;
  Judgement on_c2h_data_end(const nvme::DataPdu& pdu, bool digest_holds) override;
  void on_sent(OutgoingPdu& pdu) noexcept override;

  void push_capsule(CommandSlot& slot, nvme::Sqe sqe) noexcept;
  void push_data(CommandSlot& slot) noexcept;
  void complete(CommandSlot& slot) noexcept;
  void fail(const Fault& fault) noexcept;
  void end(const Fault& fault) noexcept;
  void send_term_req(const nvme::FatalError& error) noexcept;
  void watch(bool writable) noexcept;
  void await_bytes(std::uint32_t bytes) noexcept;
  void await_payload() noexcept;
  void shut() noexcept;

  Reactor& reactor_;
  const TcpQueuePairConfig config_;
  QueuePairClient& client_;
  State state_{State::idle};
  UniqueFd socket_;
  TimerId connect_timer_{0};
  bool watching_writable_{false};
  std::uint32_t awaited_{1};  // bytes that the socket must have to be readable
  std::uint32_t max_h2c_{0};
  nvme::Framing framing_;  // of what is sent
  SlotTable slots_;
  OutgoingPdu handshake_{};
  TcpSender sender_;
  TcpReceiver receiver_;
};

[[nodiscard]] std::shared_ptr<QueuePair> make_tcp_queue_pair(Reactor& reactor,
                                                             const TcpQueuePairConfig& config,
                                                             QueuePairClient& client);

}  // namespace akv::fabric
