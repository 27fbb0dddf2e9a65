// One client connection: frames in, replies out, the session's memory and its outstanding requests.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arena/session_memory.hpp"
#include "base/reactor.hpp"
#include "base/unique_fd.hpp"
#include "gateway/batch.hpp"
#include "gateway/frame_reader.hpp"
#include "gateway/handshake.hpp"
#include "gateway/hot_blocks.hpp"
#include "gateway/loans.hpp"
#include "gateway/output.hpp"
#include "gateway/requests.hpp"
#include "gateway/shared.hpp"
#include "gateway/wire.hpp"

namespace akv::gateway {

class Session;

// What a session asks of its worker.
class SessionHost {
 public:
  // Routes and executes; Session::finished() comes back, possibly before this returns.
  virtual void execute(std::shared_ptr<Batch> batch) = 0;
  // The session is over and may be destroyed after the current event.
  virtual void ended(Session& session) noexcept = 0;
  // A session got memory that read caches may have to give up.
  virtual void memory_taken() = 0;
  // What this worker knows without a card of the dialog's blocks; null where another one, or none, does.
  [[nodiscard]] virtual const HotBlocks* hot_blocks(std::uint64_t dialog_id) noexcept = 0;
  // Of the plan that is served.
  [[nodiscard]] virtual std::uint32_t num_dbs() const noexcept = 0;

 protected:
  ~SessionHost() = default;
};

struct SessionContext {
  Reactor& reactor;
  SharedState& shared;
  Counters& counters;
  SessionHost& host;
  ReadCache& cache;  // the worker's
  std::size_t worker;
};

class Session final : private FdHandler {
 public:
  // `local`: over the Unix socket, so that memory can be shared.
  Session(const SessionContext& context, UniqueFd socket, bool local);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // A batch of this session has all its statuses.
  void finished(const std::shared_ptr<Batch>& batch);
  // No command refers to the memory of a batch any more; after finished().
  void drained(const std::shared_ptr<Batch>& batch);
  // Looks at the deadlines.
  void tick();
  // Takes no new requests and ends when the outstanding ones are answered.
  void shut_down();
  // Ends at once.
  void close() noexcept;

  // For its host's table of sessions.
  std::size_t position{0};

 private:
  enum class State : std::uint8_t {
    hello,    // waits for HELLO
    open,     // serves requests
    closing,  // the last frame was an ERROR: sends it, reads and drops the rest
    closed,
  };

  void on_events(std::uint32_t events) noexcept override;
  void read_some();
  [[nodiscard]] long receive(std::span<std::byte> into);
  void take_descriptors(msghdr& message);
  void take_frames(std::size_t& left);
  void resume();
  void drop_input();
  void flush();
  void give_time(std::size_t taken);
  void update_interest();
  [[nodiscard]] bool may_take() const noexcept;
  [[nodiscard]] bool reads() const noexcept;
  void fail_stream(std::string_view text, std::uint64_t request_id, wire::FrameStatus status);
  void begin_closing();
  void abandon() noexcept;

  void take(const Frame& frame);
  void take_hello(const Frame& frame);
  void welcome(const Frame& frame, const wire::Hello& hello, const HelloOutcome& outcome);
  void grant_memory(const wire::Hello& hello);
  void dispatch(const Frame& frame);
  void take_alloc(const Frame& frame);
  void take_free(const Frame& frame);
  void take_put(const Frame& frame);
  void take_get(const Frame& frame);
  void take_keyed(const Frame& frame, BatchOp op);
  void take_stats(const Frame& frame);
  void take_register(const Frame& frame);
  void take_unregister(const Frame& frame);
  [[nodiscard]] bool may_borrow(const wire::Hello& hello) const noexcept;
  void attach_memory();
  void take_borrow(const Frame& frame);
  void take_give_back(const Frame& frame);
  [[nodiscard]] wire::Loan lend(ReadCache::Slot slot);
  void count_loans(std::uint64_t lent, std::uint64_t others, std::uint64_t bytes);
  [[nodiscard]] UniqueFd next_descriptor();
  void refuse_region(const Frame& frame, wire::FrameStatus status, std::string_view text);
  void retire(std::uint16_t number);
  void check_descriptors();
  void fail_region(const arena::Region& region, std::uint64_t request_id);

  [[nodiscard]] bool admit(const Frame& frame);
  [[nodiscard]] const std::shared_ptr<const Keyspace>& keyspace();
  [[nodiscard]] std::shared_ptr<Batch> make_batch(const Frame& frame, BatchOp op);
  void place_shared(Batch& batch, const TransferRequest& request);
  void place_in_arena(Batch& batch, Entry& entry, std::uint64_t offset);
  void place_in_region(Batch& batch, Entry& entry, const wire::TransferEntry& wanted);
  [[nodiscard]] wire::Welcome make_welcome(const HelloOutcome& outcome) const;
  [[nodiscard]] bool place_inline_get(Batch& batch, const TransferRequest& request);
  [[nodiscard]] bool place_inline_put(Batch& batch, const TransferRequest& request, const Frame& frame);
  void start(std::shared_ptr<Batch> batch, std::uint64_t bytes);
  void settle_unplaced(Batch& batch, Entry& entry, wire::EntryStatus status);

  void refuse(const wire::Header& request, wire::FrameStatus status, std::string_view text);
  void error(const wire::Header& request, wire::FrameStatus status, std::string_view text);
  [[nodiscard]] const Limits& limits() const noexcept { return context_.shared.limits; }

  SessionContext context_;
  UniqueFd socket_;
  bool local_;
  State state_{State::hello};
  bool shutting_down_{false};
  std::uint64_t id_;
  Handshake handshake_;
  FrameReader reader_;
  Output output_;
  std::uint32_t interest_;
  bool behind_{false};     // bytes were received that had to wait; more is not read until they are taken
  TimerId resumption_{0};  // takes them

  std::string name_space_;
  kv::Secret secret_{};
  BlockLength longest_;
  std::shared_ptr<const Keyspace> keyspace_;
  std::uint32_t keyspace_dbs_{0};
  std::shared_ptr<arena::SessionMemory> memory_;
  std::optional<Loans> loans_;  // where HELLO granted borrowing

  // A region that a client unregistered stays until no batch refers to it; then the request is answered.
  struct Registered {
    std::shared_ptr<arena::Region> region;
    std::optional<wire::Header> unregister;
  };
  bool regions_granted_{false};
  std::vector<Registered> regions_;   // number n is at n - 1
  std::deque<UniqueFd> descriptors_;  // that came and whose REGISTER did not yet
  std::vector<Batch*> lingering_;     // answered, while commands may still touch regions

  std::vector<Batch*> outstanding_;
  std::uint64_t outstanding_entries_{0};
  std::uint64_t outstanding_inline_{0};  // bytes of private memory

  TimePoint state_since_;                 // of hello and closing
  std::optional<TimePoint> frame_since_;  // an unfinished frame's first byte
  std::optional<TimePoint> write_by_;     // until when the client must have taken more, while it has to
  AfterEvent flush_;
};

}  // namespace akv::gateway
