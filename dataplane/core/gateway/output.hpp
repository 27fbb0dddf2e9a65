// Bytes on their way to a client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace akv::gateway {

class Output {
 public:
  enum class Flush : std::uint8_t {
    done,     // everything was taken
    blocked,  // the socket is full
    broken,   // the peer is gone
  };

  // Room for `size` more bytes, to be written before the next call.
  [[nodiscard]] std::span<std::byte> grow(std::size_t size);
  // Bytes that `owner` keeps alive; not copied.
  void append_shared(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  // The bytes that were appended last keep `bytes` of memory until they are sent.
  void hold(std::size_t bytes) noexcept;
  static constexpr std::size_t kMostDescriptors = 2;
  // The next grow() begins a chunk whose first byte carries the descriptors, 1 to kMostDescriptors; `owner`
  // keeps them open.
  void attach_descriptors(std::vector<int> descriptors, std::shared_ptr<const void> owner);

  // Bytes not yet taken by the socket.
  [[nodiscard]] std::size_t pending() const noexcept { return pending_; }
  // Memory that is kept until its bytes are taken.
  [[nodiscard]] std::size_t held() const noexcept { return held_; }
  // Writes what the socket takes without blocking.
  [[nodiscard]] Flush flush(int socket) noexcept;

 private:
  struct Chunk {
    std::vector<std::byte> own;
    std::span<const std::byte> shared;
    std::shared_ptr<const void> owner;
    std::vector<int> descriptors;
    std::size_t held{0};

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
      return owner != nullptr && descriptors.empty() ? shared : std::span<const std::byte>(own);
    }
  };

  [[nodiscard]] long write_some(int socket) noexcept;
  void consume(std::size_t count) noexcept;

  std::deque<Chunk> chunks_;
  std::vector<std::byte> spare_;  // memory of a chunk that was sent, for the next one
  std::size_t front_offset_{0};
  std::size_t pending_{0};
  std::size_t held_{0};
};

}  // namespace akv::gateway
