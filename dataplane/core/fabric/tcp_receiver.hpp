// The receive side of an NVMe/TCP connection of the initiator: PDUs in, payload straight into its buffers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/crc32c.hpp"
#include "fabric/ending.hpp"
#include "fabric/iovec_list.hpp"
#include "nvme/pdu.hpp"

namespace akv::fabric {

// Where the payload of one C2HData PDU goes. The list must stay until on_c2h_data_end() or stop().
struct PayloadTarget {
  const IovecList* buffer{nullptr};
  std::uint32_t offset{0};
};

// Judges every PDU once its form was checked. A Fault ends the connection.
class ReceiverClient {
 public:
  virtual std::optional<Fault> on_ic_resp(const nvme::IcResp& response) = 0;
  virtual std::optional<Fault> on_response(const nvme::Cqe& cqe) = 0;
  virtual std::optional<Fault> on_r2t(const nvme::R2t& r2t) = 0;
  // `bytes` of payload follow.
  virtual std::optional<Fault> on_c2h_data(const nvme::DataPdu& pdu, std::uint32_t bytes,
                                           PayloadTarget& target) = 0;
  // Payload for the command `cid` is in place up to `end` in its buffer.
  virtual void on_payload(std::uint16_t cid, std::uint32_t end) noexcept = 0;
  // `digest_holds` is false where the data in place is not what its digest says.
  virtual std::optional<Fault> on_c2h_data_end(const nvme::DataPdu& pdu, bool digest_holds) = 0;

 protected:
  ~ReceiverClient() = default;
};

class TcpReceiver {
 public:
  // `hpda` as in the ICReq.
  TcpReceiver(ReceiverClient& client, std::uint8_t hpda) noexcept;

  // From the next PDU on.
  void use_digests(bool header, bool data) noexcept;
  // Nothing is written to any buffer after this, though receive() may still be on the stack.
  void stop() noexcept { stopped_ = true; }

  // Reads what the socket has, up to a bound that keeps other sockets of the reactor served.
  [[nodiscard]] std::optional<Fault> receive(int fd);

  // Bytes of the present payload that are still to come.
  [[nodiscard]] std::uint32_t missing() const noexcept { return state_ == State::payload ? remaining_ : 0; }

  // The header that a Fault with a termination PDU was about.
  [[nodiscard]] std::span<const std::byte> offending_header() const noexcept;

 private:
  enum class State : std::uint8_t { header, payload, data_digest };

  [[nodiscard]] std::optional<Fault> take(std::size_t bytes);
  [[nodiscard]] std::optional<Fault> parse();
  [[nodiscard]] std::optional<Fault> step(bool& starved);
  [[nodiscard]] std::optional<Fault> parse_header(bool& starved);
  [[nodiscard]] Fault ended_by(const nvme::TermReq& request) const;
  [[nodiscard]] std::optional<Fault> dispatch(const nvme::PduHeader& header);
  [[nodiscard]] std::optional<Fault> begin_data(const nvme::PduHeader& header);
  [[nodiscard]] std::optional<Fault> end_data();
  [[nodiscard]] std::size_t gather(std::span<iovec> out) noexcept;
  void make_room() noexcept;
  void payload_arrived(std::uint32_t bytes) noexcept;
  void copy_staged_payload() noexcept;
  [[nodiscard]] std::span<const std::byte> staged() const noexcept;

  // Headers are read through here; so are the first bytes of a payload that came with its header.
  static constexpr std::size_t kStaging = 4096;
  static constexpr std::size_t kMaxHeader = 255;

  ReceiverClient& client_;
  nvme::ReceiveRules rules_;
  State state_{State::header};
  bool stopped_{false};
  bool greeted_{false};  // the ICResp came
  nvme::DataPdu data_{};
  PayloadTarget target_{};
  std::uint32_t remaining_{0};
  Crc32c crc_;
  std::size_t begin_{0};
  std::size_t end_{0};
  alignas(64) std::array<std::byte, kStaging> staging_{};
};

}  // namespace akv::fabric
