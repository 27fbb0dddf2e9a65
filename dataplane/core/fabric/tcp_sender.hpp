// The send side of an NVMe/TCP connection: PDUs in line, several of them in one system call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fabric/iovec_list.hpp"
#include "fabric/tcp_receiver.hpp"
#include "nvme/pdu.hpp"

namespace akv::fabric {

// One PDU on its way out. Its owner keeps it, and the data, until on_sent().
struct OutgoingPdu {
  std::array<std::byte, 256> header;
  std::uint32_t header_bytes{0};  // with digest and padding
  const IovecList* data{nullptr};
  std::uint32_t data_offset{0};
  std::uint32_t data_bytes{0};
  std::array<std::byte, nvme::kDigestBytes> digest;
  std::uint32_t digest_bytes{0};
  std::uint32_t sent{0};
  std::uint32_t owner{0};
  bool cancelled{false};  // not sent unless sending has begun

  [[nodiscard]] std::uint32_t bytes() const noexcept {
    return cancelled && sent == 0 ? 0 : header_bytes + data_bytes + digest_bytes;
  }

  // Encodes `pdu` with `bytes` of `from` at `offset` behind it, under the connection's framing.
  template <nvme::WireStruct T>
  void prepare(const T& pdu, const IovecList& from, std::uint32_t offset, std::uint32_t bytes,
               const nvme::Framing& framing) noexcept {
    header_bytes = static_cast<std::uint32_t>(nvme::encode_pdu(std::span(header), pdu, bytes, framing));
    attach(from, offset, bytes, framing.ddgst && bytes > 0);
  }
  // A PDU of the handshake: no data, no digests.
  template <nvme::WireStruct T>
  void prepare_bare(const T& pdu) noexcept {
    nvme::write_wire(header, pdu);
    header_bytes = sizeof pdu;
    attach(IovecList(), 0, 0, false);
  }

 private:
  void attach(const IovecList& from, std::uint32_t offset, std::uint32_t bytes, bool with_digest) noexcept;
};

class SenderClient {
 public:
  // All of it is in the socket's buffer, or it was cancelled. May push.
  virtual void on_sent(OutgoingPdu& pdu) noexcept = 0;

 protected:
  ~SenderClient() = default;
};

class TcpSender {
 public:
  // At most `capacity` PDUs are in line at once.
  TcpSender(SenderClient& client, std::size_t capacity);

  void push(OutgoingPdu& pdu) noexcept;
  void stop() noexcept { count_ = 0; }
  [[nodiscard]] bool idle() const noexcept { return count_ == 0; }
  // A PDU is partly sent: nothing else may be written.
  [[nodiscard]] bool within_pdu() const noexcept { return count_ > 0 && front().sent > 0; }

  // Sends until nothing is left or the socket is full; `blocked` tells which.
  [[nodiscard]] std::optional<Fault> flush(int fd, bool& blocked) noexcept;

 private:
  struct Batch {
    std::array<iovec, 64> vectors;
    std::size_t count{0};
    std::size_t bytes{0};
  };

  [[nodiscard]] OutgoingPdu& front() const noexcept { return *ring_[first_]; }
  void gather(Batch& batch) const noexcept;
  [[nodiscard]] static bool add_pdu(const OutgoingPdu& pdu, Batch& batch) noexcept;
  void advance(std::size_t bytes) noexcept;

  SenderClient& client_;
  std::vector<OutgoingPdu*> ring_;
  std::size_t first_{0};
  std::size_t count_{0};
};

}  // namespace akv::fabric
