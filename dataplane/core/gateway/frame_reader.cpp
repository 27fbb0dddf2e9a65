#include "gateway/frame_reader.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace akv::gateway {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{64} << 10U;

std::string hex(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), kDigits[value & 0xFU]);
    value >>= 4U;
  } while (value != 0);
  return "0x" + text;
}

}  // namespace

FrameReader::FrameReader(std::shared_ptr<arena::Budget> budget)
    : budget_(std::move(budget)), staging_(new std::byte[kStagingBytes]) {}

std::span<std::byte> FrameReader::buffer() noexcept {
  if (large_) {
    const std::size_t left = large_->header.body_len - large_->filled;
    if (large_->owner != nullptr) return large_->owner->bytes().subspan(large_->filled, left);
    return {staging_.get(), std::min(left, kStagingBytes)};
  }
  if (start_ == end_) {
    start_ = end_ = 0;
  } else if (start_ != 0) {
    std::memmove(staging_.get(), staging_.get() + start_, end_ - start_);
    end_ -= std::exchange(start_, 0);
  }
  return {staging_.get() + end_, kStagingBytes - end_};
}

void FrameReader::received(std::size_t count) noexcept {
  if (large_) {
    large_->filled += count;
  } else {
    end_ += count;
  }
}

std::optional<Frame> FrameReader::next() {
  if (!large_) return next_staged();
  if (large_->filled < large_->header.body_len) return std::nullopt;
  Frame frame{.header = large_->header, .body = {}, .owner = std::move(large_->owner)};
  large_.reset();
  frame.dropped = frame.owner == nullptr;
  if (!frame.dropped) frame.body = frame.owner->bytes();
  return frame;
}

wire::Header FrameReader::checked_header() const {
  const std::span<const std::byte, wire::kHeaderBytes> bytes(staging_.get() + start_, wire::kHeaderBytes);
  const auto header = wire::decode_header(bytes);
  if (!header) throw BadStream{"a frame does not begin with the magic " + hex(wire::kMagic)};
  if (header->body_len > max_body_) {
    throw BadStream{"a body of " + std::to_string(header->body_len) + " bytes is above the limit of " +
                        std::to_string(max_body_),
                    header->request_id};
  }
  if ((header->opcode & wire::kReply) != 0) {
    throw BadStream{"opcode " + hex(header->opcode) + " is not a request", header->request_id};
  }
  return *header;
}

std::optional<Frame> FrameReader::next_staged() {
  if (end_ - start_ < wire::kHeaderBytes) return std::nullopt;
  const wire::Header header = checked_header();
  const std::size_t body = start_ + wire::kHeaderBytes;
  if (end_ - body >= header.body_len) {
    start_ = body + header.body_len;
    return Frame{.header = header, .body = {staging_.get() + body, header.body_len}, .owner = nullptr};
  }
  if (wire::kHeaderBytes + header.body_len > kStagingBytes) begin_large(header);
  return std::nullopt;
}

void FrameReader::begin_large(const wire::Header& header) {
  const std::size_t body = start_ + wire::kHeaderBytes;
  const std::size_t there = end_ - body;
  large_ = Large{.header = header, .owner = Payload::make(*budget_, header.body_len), .filled = there};
  if (large_->owner != nullptr) std::memcpy(large_->owner->bytes().data(), staging_.get() + body, there);
  start_ = end_ = 0;
}

}  // namespace akv::gateway
