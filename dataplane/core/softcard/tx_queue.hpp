// PDUs on their way out of one connection. Values are sent from where they lie, many PDUs in one system call.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "base/crc32c.hpp"
#include "nvme/pdu.hpp"
#include "softcard/value.hpp"

namespace akv::softcard {

class TxQueue {
 public:
  enum class Result : std::uint8_t { done, blocked, failed };

  // `bytes` lie in memory that `hold` keeps alive until they are sent: `memory` says how much that is where
  // it is more.
  struct Payload {
    std::shared_ptr<const std::byte[]> hold;
    std::span<const std::byte> bytes;
    std::size_t memory{0};
  };

  template <nvme::WireStruct T>
  void push(const T& pdu, const nvme::Framing& framing, Payload payload);
  template <nvme::WireStruct T>
  void push(const T& pdu, const nvme::Framing& framing) {
    push(pdu, framing, Payload{});
  }

  // The digest of what was pushed last, if it has one, is wrong from now on (a fault that a test asked for).
  void spoil_last_digest() noexcept { items_.back().digest[0] ^= std::byte{1}; }

  // Sends what the socket takes, up to a bound that leaves other connections their turn.
  [[nodiscard]] Result flush(int socket) noexcept;

  // Data digests are computed over data padded to dwords from now on.
  void pad_digests() noexcept { pad_digests_ = true; }

  [[nodiscard]] bool empty() const noexcept { return items_.empty(); }
  // Bytes of memory that what is not sent in full yet holds.
  [[nodiscard]] std::uint64_t held() const noexcept { return held_; }
  // PDUs sent in full so far: a sign of life of the other side.
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
  [[nodiscard]] std::uint64_t head_bytes() const noexcept {
    return items_.empty() ? 0 : items_.front().size();
  }

 private:
  // The longest header: 24 bytes and a digest, padded to the largest HPDA alignment; or ICResp's 128 bytes.
  static constexpr std::size_t kPrefixMax = 128;

  struct Item {
    std::array<std::byte, kPrefixMax> prefix;
    std::size_t prefix_bytes{0};
    Payload payload;
    std::array<std::byte, nvme::kDigestBytes> digest{};
    std::size_t digest_bytes{0};

    [[nodiscard]] std::size_t size() const noexcept {
      return prefix_bytes + payload.bytes.size() + digest_bytes;
    }
    [[nodiscard]] std::size_t held() const noexcept {
      return sizeof(Item) + std::max(payload.bytes.size(), payload.memory);
    }
  };

  void finish_push(Item& item, bool ddgst) noexcept;
  void consume(std::size_t bytes) noexcept;

  std::deque<Item> items_;
  bool pad_digests_{false};
  std::size_t head_sent_{0};  // bytes of the first item that are out already
  std::uint64_t held_{0};
  std::uint64_t sent_{0};
};

template <nvme::WireStruct T>
void TxQueue::push(const T& pdu, const nvme::Framing& framing, Payload payload) {
  static_assert(sizeof(T) <= kPrefixMax);
  auto& item = items_.emplace_back();
  const auto data = static_cast<std::uint32_t>(payload.bytes.size());
  item.payload = std::move(payload);
  item.prefix_bytes = nvme::encode_pdu(item.prefix, pdu, data, framing);
  finish_push(item, framing.ddgst && data != 0);
}

}  // namespace akv::softcard
