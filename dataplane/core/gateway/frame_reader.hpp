// Cuts a session's byte stream into frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "gateway/payload.hpp"
#include "gateway/wire.hpp"

namespace akv::gateway {

struct Frame {
  wire::Header header;
  std::span<const std::byte> body;  // good until the reader is used again, or as long as `owner`
  std::shared_ptr<Payload> owner;   // holds the body when that was large
  bool dropped{false};              // there was no memory for the body: it was skipped and is empty
};

// The stream can't be trusted any more; the text says why.
struct BadStream {
  std::string text;
  std::uint64_t request_id{0};
};

// The owner receives into buffer() and tells how many bytes came to received(), then takes next() until that
// gives nothing. Bodies that don't fit the staging buffer are received straight into memory of their own.
class FrameReader {
 public:
  explicit FrameReader(std::shared_ptr<arena::Budget> budget);

  void set_max_body(std::uint32_t bytes) noexcept { max_body_ = bytes; }
  [[nodiscard]] std::span<std::byte> buffer() noexcept;
  void received(std::size_t count) noexcept;
  // The next complete frame. Throws BadStream.
  [[nodiscard]] std::optional<Frame> next();
  // Bytes of an unfinished frame are there.
  [[nodiscard]] bool in_frame() const noexcept { return large_.has_value() || end_ != start_; }

 private:
  struct Large {
    wire::Header header;
    std::shared_ptr<Payload> owner;  // null: the body is skipped
    std::size_t filled{0};
  };

  [[nodiscard]] wire::Header checked_header() const;
  [[nodiscard]] std::optional<Frame> next_staged();
  void begin_large(const wire::Header& header);

  std::shared_ptr<arena::Budget> budget_;
  std::unique_ptr<std::byte[]> staging_;
  std::size_t start_{0};
  std::size_t end_{0};
  std::uint32_t max_body_{wire::kMaxBodyBeforeHello};
  std::optional<Large> large_;
};

}  // namespace akv::gateway
