// The client's end of a session after HELLO: frames out, replies in, for any number of threads. No Python
// here.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/patience.hpp"
#include "base/unique_fd.hpp"
#include "client/forks.hpp"

namespace akv::client {

// As docs/protocol.md has it.
struct FrameHeader {
  std::uint16_t opcode{0};
  std::uint16_t status{0};
  std::uint32_t count{0};
  std::uint64_t request_id{0};
  std::uint64_t dialog_id{0};
};

inline constexpr std::size_t kHeaderBytes = 32;

void encode_header(const FrameHeader& header, std::size_t body_bytes, std::span<std::byte> to) noexcept;

struct Frame {
  FrameHeader header;
  std::vector<std::byte> body;
};

// A request that was sent and what came of it. `reply` is set once and belongs to whoever waits from then on.
struct Exchange {
  std::uint64_t request_id{0};
  std::uint32_t count{0};
  bool told{false};
  std::optional<Frame> reply;
};

enum class Waited : std::uint8_t {
  replied,
  timed_out,
  lost,  // the stream is of no use any more; why() says why
};

// Whoever waits for a reply reads the socket, and takes in what comes for others meanwhile; when it has its
// own reply another one reads on. So a reply reaches its thread without a change of threads.
//
// In a forked child it is of no use: two processes on one socket would tear what both send and receive.
class Stream final : private ForkAware {
 public:
  struct Limits {
    std::uint32_t max_body;
    std::uint32_t credits;
    std::uint64_t max_entries;
  };

  // Takes a non-blocking, connected socket over. `attention` is written to when somebody has to call
  // process().
  Stream(UniqueFd socket, UniqueFd attention, const Limits& limits);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  // There is a credit, and room for `entries` more; an exchange that was begun took them until its reply.
  [[nodiscard]] bool has_room(std::uint32_t entries);
  void take_credit(std::uint32_t entries);
  void give_back(std::uint32_t entries);
  [[nodiscard]] std::uint64_t next_request_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

  // A frame leaves at once, or together with the next one, which follows.
  enum class Send : std::uint8_t { now, with_next };
  // Sends a frame whose reply comes with the returned exchange; null where the stream can't be used. `told`:
  // take_told() gives it then, because nobody waits.
  [[nodiscard]] std::shared_ptr<Exchange> begin(std::uint64_t request_id, std::uint32_t count,
                                                std::vector<std::byte> frame, bool told,
                                                Send when = Send::now);
  // Sends bytes of a frame whose reply take_foreign() gives. A descriptor goes with the first byte.
  void send(std::vector<std::byte> bytes, UniqueFd descriptor);

  [[nodiscard]] Waited wait(const std::shared_ptr<Exchange>& exchange, TimePoint deadline);
  // Its reply is to come, or comes now, as one of those of take_foreign(), and keeps its credit until then.
  void disown(const std::shared_ptr<Exchange>& exchange);

  // Writes and reads what the socket takes and has now, unless another thread does so already.
  void process();
  // Replies that belong to no exchange, in their order.
  [[nodiscard]] std::vector<Frame> take_foreign();
  [[nodiscard]] std::vector<std::uint64_t> take_told();

  // Somebody who waits reads the socket.
  [[nodiscard]] bool attended();
  [[nodiscard]] bool has_output();
  // Exchanges without a reply.
  [[nodiscard]] std::size_t pending();
  // Why the stream can't be used any more; nothing while it can. `protocol`: the gateway sent what it must
  // not.
  struct Failure {
    bool protocol{false};
    std::string text;
  };
  [[nodiscard]] std::optional<Failure> why();
  // When the last byte came, in nanoseconds of the monotonic clock.
  [[nodiscard]] std::int64_t last_received() const noexcept {
    return last_received_.load(std::memory_order_relaxed);
  }
  // Ends everything that waits.
  void close();
  // Call process() also when an exchange ends: somebody waits for its credit.
  void set_hungry(bool hungry);

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    UniqueFd descriptor;
    std::size_t sent{0};
  };

  void before_fork() override { mutex_.lock(); }
  void after_fork_in_parent() override { mutex_.unlock(); }
  void after_fork_in_child() override;

  void queue(Outgoing part);
  void flush();
  [[nodiscard]] long send_some();
  void sent(std::size_t bytes);
  void attend(TimePoint deadline);
  [[nodiscard]] bool await(std::span<pollfd> watched, TimePoint deadline);
  void read_some();
  void end_reading();
  void take(std::span<const std::byte> bytes);
  [[nodiscard]] std::span<const std::byte> begin_frame(std::span<const std::byte> bytes);
  void deliver(Frame frame);
  void fail(bool protocol, std::string text);
  void call_attention() noexcept;

  UniqueFd socket_;
  UniqueFd attention_;
  UniqueFd wake_;
  const Limits limits_;
  std::atomic<std::uint64_t> next_id_{1};
  std::atomic<std::int64_t> last_received_;

  std::mutex mutex_;  // of all that follows, but for the reader's part
  std::condition_variable changed_;
  std::deque<Outgoing> output_;
  std::map<std::uint64_t, std::shared_ptr<Exchange>> exchanges_;
  std::vector<std::uint64_t> told_;
  std::vector<Frame> foreign_;
  std::optional<Failure> failure_;
  std::size_t waiters_{0};
  std::uint32_t credits_used_{0};
  std::uint64_t entries_used_{0};
  bool reading_{false};
  bool closed_{false};
  bool hungry_{false};

  // Of the thread that has `reading_`.
  // What the gateway answers out of its own memory is worth polling for; what it asks cards for is not.
  Patience patience_{Waiting::adaptive, std::chrono::microseconds(50)};
  std::vector<std::byte> staging_;
  std::size_t staged_{0};
  std::optional<Frame> large_;
  std::size_t filled_{0};
};

}  // namespace akv::client
