// One command to a card on behalf of one entry (or one segment of it).
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "card/io.hpp"
#include "gateway/batch.hpp"
#include "gateway/hot_blocks.hpp"
#include "kv/envelope.hpp"

namespace akv::gateway {

class Command;

class CommandOwner {
 public:
  virtual void sending(Command& command) noexcept = 0;
  virtual void arrived(Command& command, std::uint32_t bytes) noexcept = 0;
  virtual void completed(Command& command, const card::IoResult& result) noexcept = 0;
  virtual void released(Command& command) noexcept = 0;

 protected:
  ~CommandOwner() = default;
};

class Command final : public card::IoRequest {
 public:
  explicit Command(CommandOwner& owner) noexcept : owner_(owner) {}
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  [[nodiscard]] Entry& target() const noexcept { return batch->entries[entry]; }
  // Envelope and payload as two vectors: the envelope is never in memory that a client can write.
  void set_value(std::byte* payload, std::size_t length) noexcept {
    vectors_ = {iovec{envelope.data(), envelope.size()}, iovec{payload, length}};
    data = vectors_;
  }
  // To look at a value's envelope alone.
  void set_envelope() noexcept {
    vectors_[0] = {envelope.data(), envelope.size()};
    data = std::span(vectors_).first(1);
  }
  void sending() noexcept override { owner_.sending(*this); }
  void arrived(std::uint32_t bytes) noexcept override { owner_.arrived(*this, bytes); }
  void completed(const card::IoResult& result) noexcept override { owner_.completed(*this, result); }
  void released() noexcept override { owner_.released(*this); }

  std::shared_ptr<Batch> batch;
  std::uint32_t entry{0};
  std::uint16_t segment{0};
  kv::EnvelopeBytes envelope{};
  std::optional<HotBlocks::Arrival> arrival;  // GET of a value in one piece, once some of it was taken

 private:
  CommandOwner& owner_;
  std::array<iovec, 2> vectors_{};
};

}  // namespace akv::gateway
