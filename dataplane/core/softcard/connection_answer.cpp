// Commands that came in full, and their answers, with the faults that are to strike either.
#include <sys/socket.h>

#include <cstring>
#include <new>
#include <utility>

#include "nvme/connect.hpp"
#include "softcard/commands.hpp"
#include "softcard/connection.hpp"
#include "softcard/controller.hpp"
#include "softcard/target.hpp"

namespace akv::softcard {
namespace {

constexpr std::uint16_t kWrongId = 0x8000;  // beyond any queue's size: nobody has such a command

TxQueue::Payload spoiled(const TxQueue::Payload& data) {
  if (data.bytes.empty()) return data;
  auto copy = allocate_bytes(data.bytes.size());
  std::memcpy(copy.get(), data.bytes.data(), data.bytes.size());
  const std::span<std::byte> bytes(copy.get(), data.bytes.size());
  bytes[bytes.size() / 2] ^= std::byte{1};
  return {.hold = std::move(copy), .bytes = bytes};
}

}  // namespace

void Connection::execute(const Request& request) {
  const auto op = fault_op_of(request.sqe, qid_ == 0);
  if (const auto fault = op ? target_.faults().take(*op) : std::nullopt) return execute_with(*fault, request);
  run(request);
}

void Connection::execute_with(const Fault& fault, const Request& request) {
  ++target_.counters().faults;
  switch (fault.kind) {
    case FaultKind::delay:
      return run_later(fault.delay, request);
    case FaultKind::error:
      return respond(request.sqe.cid, fault.status);
    case FaultKind::drop: {
      const linger at_once{.l_onoff = 1, .l_linger = 0};  // a reset, and no orderly end
      ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      return close("fault");
    }
    case FaultKind::half_close:
      return half_close();
    case FaultKind::corrupt:
    case FaultKind::wrong_id:
    case FaultKind::short_data:
    case FaultKind::bad_digest:
      answer_faults_[request.sqe.cid] = fault.kind;
      return run(request);
    case FaultKind::hang:
    case FaultKind::torn:
      return;
  }
}

void Connection::run_later(std::chrono::milliseconds delay, const Request& request) {
  const auto timer = std::make_shared<TimerId>(0);
  delayed_bytes_ += request.view().size();
  *timer = target_.reactor().call_after(delay, [this, timer, request] {
    delayed_.erase(*timer);
    delayed_bytes_ -= request.view().size();
    try {
      run(request);
    } catch (const std::bad_alloc&) {
      return close("out of memory");
    }
    flush();
  });
  delayed_.insert(*timer);
}

// As after a fatal error, but without a word of it.
void Connection::half_close() {
  phase_ = Phase::terminating;
  paused_ = false;
  phase_deadline_ = target_.reactor().now() + target_.config().stall_timeout;
}

void Connection::run(const Request& request) {
  const bool in_use = transfers_.uses(request.sqe.cid) || pending_.contains(request.sqe.cid);
  if (in_use) return respond(request.sqe.cid, nvme::dnr(nvme::kCommandIdConflict));
  if (controller_ != nullptr && qid_ == 0) {
    execute_admin(*this, request);
  } else if (controller_ != nullptr) {
    execute_io(*this, request);
  } else {
    execute_unconnected(*this, request);
  }
}

std::optional<FaultKind> Connection::take_answer_fault(std::uint16_t cid) {
  if (answer_faults_.empty()) return std::nullopt;
  const auto fault = answer_faults_.extract(cid);
  return fault.empty() ? std::nullopt : std::optional(fault.mapped());
}

void Connection::respond(std::uint16_t cid, nvme::Status status, std::uint64_t result) {
  if (!open()) return;
  const bool wrong_id = take_answer_fault(cid) == FaultKind::wrong_id;
  push_response(wrong_id ? cid ^ kWrongId : cid, status, result);
}

void Connection::push_response(std::uint16_t cid, nvme::Status status, std::uint64_t result) {
  nvme::CapsuleResp pdu;
  pdu.cqe.set_result64(result);
  pdu.cqe.sqhd = sq_flow_control_ ? sqhd_ : nvme::kSqhdDisabled;
  pdu.cqe.sqid = 0;  // reserved in Fabrics
  pdu.cqe.cid = cid;
  pdu.cqe.set_status(status);
  tx_.push(pdu, send_framing_);
}

void Connection::respond_data(std::uint16_t cid, TxQueue::Payload data, std::uint64_t result) {
  if (!open()) return;
  const auto fault = take_answer_fault(cid);
  if (fault == FaultKind::wrong_id) cid ^= kWrongId;
  if (fault == FaultKind::short_data) data.bytes = data.bytes.first(data.bytes.size() / 2);
  if (fault == FaultKind::corrupt) data = spoiled(data);
  if (!data.bytes.empty()) {
    nvme::DataPdu pdu;
    pdu.common.type = static_cast<std::uint8_t>(nvme::PduType::c2h_data);
    pdu.common.flags = nvme::kPduLast;
    pdu.cccid = cid;
    pdu.datal = static_cast<std::uint32_t>(data.bytes.size());
    tx_.push(pdu, send_framing_, std::move(data));
    if (fault == FaultKind::bad_digest) tx_.spoil_last_digest();
  }
  push_response(cid, nvme::kSuccess, result);
}

void Connection::begin_store(std::uint16_t cid, const nvme::KvCommand& command) {
  // The host may not have more commands outstanding than its queue has entries.
  if (transfers_.size() + pending_.size() >= entries_)
    return terminate({nvme::FatalStatus::sequence_error, 0}, {});
  const bool waited = transfers_.any_waiting();
  if (const auto tag = transfers_.start(cid, command)) {
    ask_for_data(*tag);
  } else if (!waited) {
    target_.budget().join_line(*this);
  }
}

bool Connection::begin_pending(std::uint16_t cid, std::uint64_t bytes) {
  if (transfers_.size() + pending_.size() >= entries_) {
    terminate({nvme::FatalStatus::sequence_error, 0}, {});
    return false;
  }
  pending_.emplace(cid, bytes);
  pending_bytes_ += bytes;
  return true;
}

void Connection::end_pending(std::uint16_t cid) {
  const auto ended = pending_.extract(cid);
  pending_bytes_ -= ended.mapped();
  answers_.request();
}

void Connection::send_answers() noexcept {
  try {
    flush();
  } catch (const std::bad_alloc&) {
    close("out of memory");
  }
}

bool Connection::use_budget() {
  while (const auto tag = transfers_.start_waiting())
    ask_for_data(*tag);
  flush();
  return !transfers_.any_waiting();
}

void Connection::ask_for_data(std::uint16_t tag) {
  auto& transfer = *transfers_.find(tag);
  transfer.deadline = target_.reactor().now() + time_for(transfer.command.size);
  nvme::R2t pdu;
  pdu.cccid = transfer.cid;
  pdu.ttag = tag;
  pdu.r2tl = transfer.command.size;
  tx_.push(pdu, send_framing_);
}

}  // namespace akv::softcard
