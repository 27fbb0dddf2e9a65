#include "softcard/tx_queue.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.hpp"
#include "nvme/data_digest.hpp"

namespace akv::softcard {
namespace {

constexpr std::size_t kVectors = 48;
constexpr std::size_t kBytesPerFlush = std::size_t{8} << 20U;

// Collects pieces, leaving out the first `skip` bytes of all.
class Pieces {
 public:
  explicit Pieces(std::size_t skip) noexcept : skip_(skip) {}

  void add(std::span<const std::byte> piece) noexcept {
    const auto skipped = std::min(skip_, piece.size());
    skip_ -= skipped;
    piece = piece.subspan(skipped);
    if (piece.empty()) return;
    vectors_[count_++] = {const_cast<std::byte*>(piece.data()), piece.size()};
  }
  [[nodiscard]] bool full() const noexcept { return count_ + 3 > kVectors; }
  [[nodiscard]] iovec* data() noexcept { return vectors_.data(); }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  std::array<iovec, kVectors> vectors_;
  std::size_t count_{0};
  std::size_t skip_;
};

}  // namespace

void TxQueue::finish_push(Item& item, bool ddgst) noexcept {
  if (ddgst) {
    Crc32c crc;
    crc.update(item.payload.bytes);
    store_le(item.digest.data(),
             pad_digests_ ? nvme::padded_data_digest(crc, item.payload.bytes.size()) : crc.value());
    item.digest_bytes = nvme::kDigestBytes;
  }
  held_ += item.held();
}

TxQueue::Result TxQueue::flush(int socket) noexcept {
  std::size_t budget = kBytesPerFlush;
  while (!items_.empty() && budget > 0) {
    Pieces pieces(head_sent_);
    for (auto item = items_.begin(); item != items_.end() && !pieces.full(); ++item) {
      pieces.add(std::span(item->prefix).first(item->prefix_bytes));
      pieces.add(item->payload.bytes);
      pieces.add(std::span(item->digest).first(item->digest_bytes));
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.count();
    const auto sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? Result::blocked : Result::failed;
    }
    consume(static_cast<std::size_t>(sent));
    budget -= std::min(budget, static_cast<std::size_t>(sent));
  }
  return items_.empty() ? Result::done : Result::blocked;
}

void TxQueue::consume(std::size_t bytes) noexcept {
  head_sent_ += bytes;
  while (!items_.empty() && head_sent_ >= items_.front().size()) {
    head_sent_ -= items_.front().size();
    held_ -= items_.front().held();
    items_.pop_front();
    ++sent_;
  }
}

}  // namespace akv::softcard
