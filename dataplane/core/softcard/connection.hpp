// One NVMe/TCP connection: one queue pair of one controller, seen from the card.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "base/reactor.hpp"
#include "base/unique_fd.hpp"
#include "nvme/kv.hpp"
#include "nvme/pdu.hpp"
#include "softcard/faults.hpp"
#include "softcard/receiver.hpp"
#include "softcard/transfers.hpp"
#include "softcard/tx_queue.hpp"

namespace akv::softcard {

class Controller;
class Target;

// A command that came with all of its data.
struct Request {
  nvme::Sqe sqe{};
  SharedBytes data;             // in-capsule; null where the command has no use for it
  std::uint32_t data_bytes{0};  // that came, whether they were kept or not

  [[nodiscard]] std::span<const std::byte> view() const noexcept {
    return {data.get(), data == nullptr ? 0 : data_bytes};
  }
};

class Connection final : public FdHandler, public BudgetWaiter {
 public:
  Connection(Target& target, UniqueFd socket, std::uint64_t id);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] Target& target() const noexcept { return target_; }
  [[nodiscard]] Controller* controller() const noexcept { return controller_; }
  [[nodiscard]] std::uint16_t qid() const noexcept { return qid_; }

  void on_events(std::uint32_t events) noexcept override;
  bool use_budget() override;
  // Closes what is over a deadline; called a few times a second.
  void check_deadlines(TimePoint now);

  // Answers of commands. `result` is DW0 and DW1.
  void respond(std::uint16_t cid, nvme::Status status, std::uint64_t result = 0);
  // C2HData, then the completion in a PDU of its own: only there is room for `result` (the size of a value).
  void respond_data(std::uint16_t cid, TxQueue::Payload data, std::uint64_t result = 0);

  // Sends what was answered. Events of this connection end with it; others that answer here must call it.
  void flush();

  // A command that the store answers later, which holds so many bytes apart from the receive budget. False:
  // the host has more commands under way than its queue takes, and the connection ends.
  [[nodiscard]] bool begin_pending(std::uint16_t cid, std::uint64_t bytes);
  // Its answer is there; it is sent after the current event.
  void end_pending(std::uint16_t cid);
  // Of the receive budget.
  void give_back(std::uint32_t bytes) { transfers_.give_back(bytes); }

  // A successful Connect: `entries` is the queue's size.
  void attach(Controller& controller, std::uint16_t qid, std::uint16_t entries, bool sq_flow_control);
  // A store whose data the host holds: asks for it.
  void begin_store(std::uint16_t cid, const nvme::KvCommand& command);
  [[nodiscard]] bool abort_waiting_store(std::uint16_t cid) { return transfers_.cancel_waiting(cid); }

  // The owner destroys the object once the current event is over.
  void close(std::string_view why) noexcept;

 private:
  // Memory of answers that a host has not taken yet. Above this the connection's commands wait in the host's
  // socket.
  static constexpr std::uint64_t kMaxOutput = std::uint64_t{16} << 20U;

  enum class Phase : std::uint8_t { initialize, connect, live, terminating, closed };

  void handle_events(std::uint32_t events);
  void receive();
  void process();
  [[nodiscard]] bool process_one();
  void handle_pdu(const nvme::PduHeader& header);
  void initialize(const nvme::PduHeader& header);
  void begin_capsule(const nvme::PduHeader& header);
  [[nodiscard]] bool has_use_for(std::uint32_t capsule_data) const;
  void end_capsule() noexcept;
  void begin_h2c_data(const nvme::PduHeader& header);
  void end_data();
  void end_h2c_data(std::uint16_t tag);
  [[nodiscard]] bool digest_holds();
  void execute(const Request& request);
  void run(const Request& request);
  void execute_with(const Fault& fault, const Request& request);
  void run_later(std::chrono::milliseconds delay, const Request& request);
  void half_close();
  void send_answers() noexcept;
  [[nodiscard]] std::uint64_t held_bytes() const noexcept {
    return tx_.held() + pending_bytes_ + delayed_bytes_;
  }
  [[nodiscard]] std::optional<FaultKind> take_answer_fault(std::uint16_t cid);
  void push_response(std::uint16_t cid, nvme::Status status, std::uint64_t result);
  void ask_for_data(std::uint16_t tag);

  void update_interest();
  void terminate(const nvme::FatalError& error, std::span<const std::byte> header);
  void drain();
  void watch_partial_pdu(TimePoint now);
  [[nodiscard]] std::chrono::milliseconds time_for(std::uint64_t bytes) const;

  [[nodiscard]] bool open() const noexcept { return phase_ != Phase::terminating && phase_ != Phase::closed; }

  Target& target_;
  UniqueFd socket_;
  std::uint64_t id_;
  Phase phase_{Phase::initialize};
  std::uint32_t interest_{0};
  bool paused_{false};  // reads nothing until the host takes its answers

  nvme::ReceiveRules rules_;
  nvme::Framing send_framing_{};
  Receiver rx_;
  TxQueue tx_;
  TransferTable transfers_;
  Request request_{};                     // whose in-capsule data is being received
  std::uint32_t capsule_bytes_{0};        // of the receive budget, for that data
  std::optional<std::uint16_t> h2c_tag_;  // whose H2CData is being received
  std::uint32_t h2c_bytes_{0};

  std::map<std::uint16_t, std::uint64_t>
      pending_;  // bytes of each command that the store has still to answer
  std::uint64_t pending_bytes_{0};
  AfterEvent answers_;

  Controller* controller_{nullptr};
  std::uint16_t qid_{0};
  std::uint32_t entries_{1};  // of the submission queue
  std::uint16_t sqhd_{0};
  bool sq_flow_control_{true};

  // Commands that a fault holds back, and answers that one will spoil.
  std::set<TimerId> delayed_;
  std::uint64_t delayed_bytes_{0};  // of data that came with them
  std::map<std::uint16_t, FaultKind> answer_faults_;

  TimePoint phase_deadline_;
  std::optional<TimePoint> pdu_deadline_;
  std::optional<TimePoint> tx_deadline_;
  std::uint64_t tx_sent_{0};
};

}  // namespace akv::softcard
