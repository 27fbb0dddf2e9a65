// A queue pair of one controller over some transport: commands go out, completions come back.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "fabric/ending.hpp"
#include "nvme/command.hpp"

namespace akv::fabric {

enum class Direction : std::uint8_t { none, to_target, from_target };

enum class DigestPolicy : std::uint8_t {
  off,      // not asked for
  prefer,   // asked for, used when the target agrees
  require,  // the target must agree
};

struct Command {
  nvme::Sqe sqe;  // the queue pair sets command id, flags and SGL
  Direction direction{Direction::none};
  std::span<const iovec> data{};   // copied; the bytes must stay until the response or on_closed()
  bool must_be_in_capsule{false};  // Connect, whatever the queue's limit
};

struct Response {
  nvme::Cqe cqe;
  std::uint32_t received{0};  // bytes of data from the target, from the buffer's start
  bool synthetic{false};      // stands for C2HData's SUCCESS flag: DW0 and DW1 are unknown
  // Of data from the target. The status is an error then, whatever the target answered.
  bool wrong_digest{false};
};

// Called on the queue pair's thread. Where nothing else is said a call may submit and close; none may destroy
// the queue pair.
class QueuePairClient {
 public:
  // The transport is up: commands may be submitted, Connect first.
  virtual void on_open() noexcept = 0;
  // The first `bytes` of a command's data from the target are in place, and what they are is not judged yet:
  // their digest may be wrong. Called with ever more bytes, as often as is convenient. Must neither submit
  // nor close.
  virtual void on_arrived(std::uint32_t /*tag*/, std::uint32_t /*bytes*/) noexcept {}
  virtual void on_response(std::uint32_t tag, const Response& response) noexcept = 0;
  // Once, and the last call: the socket is closed and no buffer is referred to any more. No response comes
  // for commands that are outstanding.
  virtual void on_closed(Ending how, const std::string& reason) noexcept = 0;

 protected:
  ~QueuePairClient() = default;
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;
  // Begins to connect. May call on_closed() before it returns.
  virtual void start() = 0;
  // False when it is not open, all command ids are in use, or the data has more than 8 vectors. Nothing is
  // sent before flush(). `tag` comes back with the response.
  [[nodiscard]] virtual bool submit(const Command& command, std::uint32_t tag) noexcept = 0;
  // A write of so many bytes goes with its command. The data of larger ones is read when the target asks for
  // it, which it can't before the event after that of flush().
  [[nodiscard]] virtual bool in_capsule(std::uint32_t bytes) const noexcept = 0;
  // The command id that an outstanding command went by, for Abort; nothing when none has this tag. Looks
  // through all of them.
  [[nodiscard]] virtual std::optional<std::uint16_t> command_id(std::uint32_t tag) const noexcept = 0;
  // Sends what the transport takes now; the rest follows by itself. May call on_response() and on_closed().
  virtual void flush() noexcept = 0;
  // Calls on_closed(), once, with Ending::asked.
  virtual void close(const std::string& reason) noexcept = 0;
};

}  // namespace akv::fabric
