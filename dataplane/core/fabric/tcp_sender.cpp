#include "fabric/tcp_sender.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/bytes.hpp"
#include "base/crc32c.hpp"
#include "base/guarded_memory.hpp"

namespace akv::fabric {
namespace {

// More in one call only pins the thread to one socket.
constexpr std::size_t kBytesPerCall = std::size_t{1} << 20U;
constexpr std::size_t kVectorsPerPdu = kMaxVectors + 2;
// Once is enough unless the owner of the memory takes it away and gives it back all the time.
constexpr int kMaxMends = 64;

}  // namespace

void OutgoingPdu::attach(const IovecList& from, std::uint32_t offset, std::uint32_t bytes,
                         bool with_digest) noexcept {
  data = bytes > 0 ? &from : nullptr;
  data_offset = offset;
  data_bytes = bytes;
  digest_bytes = 0;
  sent = 0;
  cancelled = false;
  if (!with_digest) return;
  std::array<iovec, kMaxVectors> pieces;
  Crc32c crc;
  for (const iovec& piece : std::span(pieces).first(from.slice(offset, bytes, pieces))) {
    crc.update({static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
  }
  store_le(digest.data(), crc.value());
  digest_bytes = nvme::kDigestBytes;
}

TcpSender::TcpSender(SenderClient& client, std::size_t capacity) : client_(client), ring_(capacity) {}

void TcpSender::push(OutgoingPdu& pdu) noexcept {
  ring_[(first_ + count_) % ring_.size()] = &pdu;
  ++count_;
}

// False when the batch has no room for the PDU's vectors.
bool TcpSender::add_pdu(const OutgoingPdu& pdu, Batch& batch) noexcept {
  if (pdu.bytes() == 0) return true;
  if (batch.vectors.size() - batch.count < kVectorsPerPdu) return false;
  std::uint32_t skip = pdu.sent;
  const auto add = [&](const std::byte* from, std::uint32_t bytes) {
    const std::uint32_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (bytes == skipped) return;
    batch.vectors[batch.count++] = {const_cast<std::byte*>(from) + skipped, bytes - skipped};
  };
  add(pdu.header.data(), pdu.header_bytes);
  const std::uint32_t skipped = std::min(skip, pdu.data_bytes);
  skip -= skipped;
  if (pdu.data_bytes > skipped) {
    const auto room = std::span(batch.vectors).subspan(batch.count);
    batch.count += pdu.data->slice(pdu.data_offset + skipped, pdu.data_bytes - skipped, room);
  }
  add(pdu.digest.data(), pdu.digest_bytes);
  batch.bytes += pdu.bytes() - pdu.sent;
  return true;
}

void TcpSender::gather(Batch& batch) const noexcept {
  for (std::size_t i = 0; i < count_ && batch.bytes < kBytesPerCall; ++i) {
    if (!add_pdu(*ring_[(first_ + i) % ring_.size()], batch)) return;
  }
}

// Books what was sent on all PDUs first: the client, called for complete ones, may push, cancel and stop.
void TcpSender::advance(std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < count_ && bytes > 0; ++i) {
    OutgoingPdu& pdu = *ring_[(first_ + i) % ring_.size()];
    const auto taken = static_cast<std::uint32_t>(std::min<std::size_t>(pdu.bytes() - pdu.sent, bytes));
    pdu.sent += taken;
    bytes -= taken;
  }
  while (count_ > 0 && front().sent == front().bytes()) {
    OutgoingPdu& pdu = front();
    first_ = (first_ + 1) % ring_.size();
    --count_;
    client_.on_sent(pdu);
  }
}

std::optional<Fault> TcpSender::flush(int fd, bool& blocked) noexcept {
  blocked = false;
  int mends = 0;
  while (count_ > 0) {
    Batch batch;
    gather(batch);
    msghdr message{};
    message.msg_iov = batch.vectors.data();
    message.msg_iovlen = batch.count;
    const ssize_t sent = batch.bytes == 0 ? 0 : ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      // A client's memory is gone: once that is noticed, the bytes go out as zeros, which no checksum
      // matches.
      if (errno == EFAULT && ++mends <= kMaxMends) {
        touch_pages(std::span(batch.vectors).first(batch.count));
        continue;
      }
      blocked = errno == EAGAIN;
      if (blocked) return std::nullopt;
      return system_fault("send", errno);
    }
    advance(static_cast<std::size_t>(sent));
    blocked = static_cast<std::size_t>(sent) < batch.bytes && count_ > 0;
    if (blocked) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace akv::fabric
