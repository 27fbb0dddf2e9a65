// Faults that are switched on by hand or by a test (`akv-softcard ctl ... fault`): the card then answers
// late, wrongly or not at all, or its file fails, as often as was asked for.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nvme/command.hpp"
#include "nvme/status.hpp"

namespace akv::softcard {

enum class FaultOp : std::uint8_t {
  store,
  retrieve,
  exist,
  remove,
  list,
  connect,
  property,
  identify,
  set_features,
  get_features,
  keep_alive,
  abort,
  async_event,
  log_page,
  file_read,
  file_write,
};

enum class FaultKind : std::uint8_t {
  delay,       // done `delay` later
  hang,        // never answered; in the file: until the faults are cleared
  error,       // answered with `status`; in the file: fails with `error_number`
  corrupt,     // one byte of the data to the host is another one
  drop,        // the connection is reset
  half_close,  // the card ends its direction and listens on without a word
  wrong_id,    // answered under a command id that nobody used
  short_data,  // half of the data, though the completion tells all of it
  bad_digest,  // data under a wrong digest, where the connection has data digests
  torn,        // in the file: the first half of a write is done, then it fails
};

struct Fault {
  std::uint32_t id{0};
  std::string ops;        // as it was named: "retrieve", "io", ...
  std::uint32_t mask{0};  // a bit for each FaultOp
  FaultKind kind{FaultKind::hang};
  std::uint64_t after{0};  // times it lets pass first
  std::uint64_t count{0};  // times it strikes; 0: until cleared
  std::chrono::milliseconds delay{0};
  nvme::Status status{nvme::kInternalError};
  int error_number{0};
  std::uint64_t hits{0};  // times it struck

  [[nodiscard]] bool spent() const noexcept { return count != 0 && hits >= count; }
};

// "retrieve delay ms=500 count=3 after=10": what, how, and parameters in any order. Throws
// std::invalid_argument that says what is wrong and what would be right.
[[nodiscard]] Fault parse_fault(std::string_view text);
[[nodiscard]] std::string_view to_string(FaultKind kind) noexcept;

// Which of the switches a command is for: none for commands that the card does not know.
[[nodiscard]] std::optional<FaultOp> fault_op_of(const nvme::Sqe& sqe, bool admin_queue) noexcept;

// The faults that are on. Any thread may call.
class Faults {
 public:
  static constexpr std::size_t kMax = 64;

  // Its number. Throws std::invalid_argument when kMax are on.
  std::uint32_t add(Fault fault);
  // How many were on. Whatever hangs in the file goes on.
  std::size_t clear();
  // From now on nothing of the file waits any more: the card ends.
  void release() noexcept;
  [[nodiscard]] std::vector<Fault> all() const;

  // The fault that strikes now, if any: one of several, the oldest.
  [[nodiscard]] std::optional<Fault> take(FaultOp op) {
    return armed_.load(std::memory_order_relaxed) ? take_armed(op) : std::nullopt;
  }
  // Keeps the calling thread waiting as a delay or hang of the file says.
  void wait(const Fault& fault);

 private:
  [[nodiscard]] std::optional<Fault> take_armed(FaultOp op);

  std::atomic<bool> armed_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Fault> faults_;
  std::uint32_t last_id_{0};
  std::uint64_t clearings_{0};
  bool released_{false};
};

}  // namespace akv::softcard
