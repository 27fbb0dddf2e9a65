// The receiving side of one connection: small bytes through a buffer, data straight to where it belongs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/crc32c.hpp"
#include "nvme/data_digest.hpp"
#include "nvme/pdu.hpp"

namespace akv::softcard {

class Receiver {
 public:
  enum class Read : std::uint8_t { some, all_there_was, nothing, end, failed };

  Receiver() : buffer_(kBufferBytes) {}

  // One read of the socket: first into the data expected, the rest into the buffer.
  [[nodiscard]] Read read(int socket) noexcept;

  // Bytes received and not consumed; only meaningful while no data is expected.
  [[nodiscard]] std::span<const std::byte> buffered() const noexcept {
    return std::span(buffer_).subspan(begin_, end_ - begin_);
  }
  void consume(std::size_t bytes) noexcept { begin_ += bytes; }

  // The next bytes are data for `to`, followed by its digest where `digest` says so.
  void expect_data(std::span<std::byte> to, bool digest) noexcept { expect(to.data(), to.size(), digest); }
  // The next bytes are data that nobody wants: they go through the buffer and take no memory.
  void skip_data(std::size_t bytes, bool digest) noexcept { expect(nullptr, bytes, digest); }
  // Moves what is buffered to the data, or drops it; true once the data and its digest are complete.
  [[nodiscard]] bool advance_data() noexcept;
  [[nodiscard]] bool expecting_data() const noexcept { return expecting_; }
  // Of the data that was complete last.
  [[nodiscard]] nvme::DataDigest digest() const noexcept;

  // In the middle of a PDU.
  [[nodiscard]] bool partial() const noexcept { return expecting_ || begin_ != end_; }

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{32} << 10U;

  void expect(std::byte* to, std::size_t bytes, bool digest) noexcept;
  void take_data(std::span<const std::byte> piece) noexcept;

  std::vector<std::byte> buffer_;
  std::size_t begin_{0};
  std::size_t end_{0};

  bool expecting_{false};
  bool with_digest_{false};
  std::byte* to_{nullptr};  // where the next byte of data goes; null: it is skipped
  std::size_t missing_{0};  // bytes of data
  std::size_t data_bytes_{0};
  Crc32c crc_;
  std::array<std::byte, nvme::kDigestBytes> digest_{};
  std::size_t digest_got_{0};
};

}  // namespace akv::softcard
