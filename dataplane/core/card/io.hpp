// What the KV server asks of a card: the only border between gateway/ and card/.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace akv::card {

using CardKey = std::array<std::byte, 16>;

enum class IoOp : std::uint8_t { store, retrieve, exist, remove };

enum class IoStatus : std::uint8_t {
  ok,            // store: stored; retrieve: bytes arrived; exist: there; remove: gone
  not_found,     // retrieve, exist, remove: the card has no such key
  too_large,     // the value or the transfer is larger than the card takes
  no_space,      // the card is full and does not evict
  busy,          // refused at submit: the queue is full or not connected
  timeout,       // io_timeout_ms went by; the buffers are still the card's until released()
  disconnected,  // the queue went away before an answer
  error,         // any other NVMe status, in nvme_status
};

struct IoResult {
  IoStatus status{IoStatus::error};
  std::uint16_t nvme_status{0};  // status field of the completion without the phase bit
  std::uint32_t value_size{0};   // retrieve: the stored value's full size in bytes (may exceed the buffer)
};

// One command, owned by the caller, who keeps it and every buffer alive until released().
// completed() is called once, with the result or with timeout. released() is called once, after
// completed(): from then on neither card nor queue refers to the buffers. All calls come from the queue's own
// thread, never from inside submit().
struct IoRequest {
  IoOp op{IoOp::retrieve};
  CardKey key{};
  std::span<const iovec> data;  // store: value; retrieve: destination; in order, at most 8 vectors

  // Of `data`.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    std::uint64_t total = 0;
    for (const iovec& vector : data)
      total += vector.iov_len;
    return total;
  }

  // Store: `data` is read from now on, and was not before. Called once for a store whose data is read, before
  // completed(). May change the bytes. Must not submit.
  virtual void sending() noexcept {}
  // Retrieve: the first `bytes` of `data` are in place. Nothing follows from that: what completed() tells may
  // be an error. Called as often as the queue likes, also never, with ever more bytes, and not after
  // completed(). Must not submit.
  virtual void arrived(std::uint32_t /*bytes*/) noexcept {}
  virtual void completed(const IoResult& result) noexcept = 0;
  virtual void released() noexcept = 0;

 protected:
  ~IoRequest() = default;
};

// One I/O queue pair of one card, used only from the worker thread that owns it.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  // Connected, identified with the expected serial, and not struck out.
  [[nodiscard]] virtual bool ready() const noexcept = 0;
  // False: not taken (queue full or not ready); nothing will be called back.
  [[nodiscard]] virtual bool submit(IoRequest& request) noexcept = 0;
  // Largest value of one store or retrieve in bytes (MDTS and the namespace's maximum value length).
  [[nodiscard]] virtual std::uint32_t max_value_bytes() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t inflight() const noexcept = 0;
  // A value of the card is not what was stored: the card's status says so for a while.
  virtual void report_corrupt() noexcept = 0;
};

}  // namespace akv::card
