#include "softcard/connection.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "nvme/connect.hpp"
#include "softcard/commands.hpp"
#include "softcard/controller.hpp"
#include "softcard/target.hpp"

namespace akv::softcard {
namespace {

// Answers a host has not taken yet. Above this the connection's commands wait in the host's socket.
constexpr std::uint64_t kMaxOutput = std::uint64_t{16} << 20U;
constexpr int kReadsPerEvent = 8;
constexpr auto kTerminationTime = std::chrono::seconds(1);

constexpr std::size_t kPfvOffset = 8;
constexpr std::size_t kHpdaOffset = 10;
constexpr std::size_t kDgstOffset = 11;
constexpr std::size_t kCccidOffset = 8;
constexpr std::size_t kTtagOffset = 10;
constexpr std::size_t kDataoOffset = 12;
constexpr std::size_t kDatalOffset = 16;

constexpr std::uint16_t kWrongId = 0x8000;  // beyond any queue's size: nobody has such a command

TxQueue::Payload spoiled(const TxQueue::Payload& data) {
  if (data.bytes.empty()) return data;
  auto copy = allocate_bytes(data.bytes.size());
  std::memcpy(copy.get(), data.bytes.data(), data.bytes.size());
  const std::span<std::byte> bytes(copy.get(), data.bytes.size());
  bytes[bytes.size() / 2] ^= std::byte{1};
  return {.hold = std::move(copy), .bytes = bytes};
}

// Larger pieces get more time: a slow network is no fault.
std::chrono::milliseconds time_for(std::uint64_t bytes, std::chrono::milliseconds per_mebibyte) {
  return per_mebibyte * static_cast<std::int64_t>(1 + (bytes >> 20U));
}

}  // namespace

Connection::Connection(Target& target, UniqueFd socket, std::uint64_t id)
    : target_(target),
      socket_(std::move(socket)),
      id_(id),
      interest_(EPOLLIN),
      rules_{.role = nvme::Role::controller,
             .framing = {},
             .max_capsule_data = kInCapsuleBytes,
             .max_data = kMaxH2cDataBytes},
      transfers_(target.budget()),
      answers_(target.reactor(), [this] { send_answers(); }),
      phase_deadline_(Clock::now() + target.config().handshake_timeout) {
  target_.reactor().add(socket_.get(), interest_, *this);
}

Connection::~Connection() {
  close("destroyed");
}

void Connection::on_events(std::uint32_t events) noexcept {
  try {
    handle_events(events);
  } catch (const std::bad_alloc&) {
    close("out of memory");
  }
}

void Connection::handle_events(std::uint32_t events) {
  if ((events & EPOLLERR) != 0) return close("connection reset");
  if ((events & (EPOLLIN | EPOLLHUP)) != 0) {
    if (phase_ == Phase::terminating) {
      drain();
    } else {
      receive();
    }
  }
  flush();
}

void Connection::receive() {
  for (int reads = 0; reads < kReadsPerEvent && open() && !paused_; ++reads) {
    const auto result = rx_.read(socket_.get());
    if (result == Receiver::Read::nothing) break;
    if (result == Receiver::Read::end) return close("closed by the host");
    if (result == Receiver::Read::failed) return close("connection reset");
    process();
    if (result == Receiver::Read::all_there_was) break;
  }
  if (open()) watch_partial_pdu(target_.reactor().now());
}

void Connection::process() {
  while (open() && !paused_ && process_one()) {
    pdu_deadline_.reset();
    paused_ = held_bytes() > kMaxOutput;
  }
}

// True when one step of a PDU was done and another may follow.
bool Connection::process_one() {
  if (rx_.expecting_data()) {
    if (!rx_.advance_data()) return false;
    end_data();
    return true;
  }
  const auto bytes = rx_.buffered();
  const auto result = nvme::parse_pdu(bytes, rules_);
  switch (result.kind) {
    case nvme::ParseResult::Kind::need_more:
      return false;
    case nvme::ParseResult::Kind::error:
      terminate(result.error, bytes);
      return false;
    case nvme::ParseResult::Kind::header:
      handle_pdu(result.header);
      return true;
  }
  return false;
}

void Connection::handle_pdu(const nvme::PduHeader& header) {
  const bool first = phase_ == Phase::initialize;
  if (first != (header.type == nvme::PduType::ic_req) && header.type != nvme::PduType::h2c_term_req) {
    return terminate({nvme::FatalStatus::sequence_error, 0}, rx_.buffered());
  }
  switch (header.type) {
    case nvme::PduType::ic_req:
      return initialize(header);
    case nvme::PduType::capsule_cmd:
      return begin_capsule(header);
    case nvme::PduType::h2c_data:
      return begin_h2c_data(header);
    default:  // h2c_term_req: parse_pdu lets no other type through
      return close("terminated by the host");
  }
}

// 3.1 "Connection establishment": ICReq is answered by ICResp or the connection ends.
void Connection::initialize(const nvme::PduHeader& header) {
  const auto request = nvme::read_wire<nvme::IcReq>(rx_.buffered());
  const auto unsupported = [this](std::size_t offset) {
    terminate({nvme::FatalStatus::unsupported_parameter, static_cast<std::uint32_t>(offset)}, rx_.buffered());
  };
  if (request.pfv != 0) return unsupported(kPfvOffset);
  if (request.hpda > nvme::kPdaMax) {
    return terminate({nvme::FatalStatus::invalid_header_field, kHpdaOffset}, rx_.buffered());
  }
  constexpr unsigned both = nvme::kDigestHeader | nvme::kDigestData;
  const auto digests = static_cast<std::uint8_t>(request.dgst & both);
  if (target_.config().require_digests && digests != both) return unsupported(kDgstOffset);
  rx_.consume(header.plen);

  nvme::IcResp response;
  response.dgst = digests;
  response.maxh2cdata = kMaxH2cDataBytes;
  tx_.push(response, {});
  rules_.framing = {.hdgst = (digests & nvme::kDigestHeader) != 0,
                    .ddgst = (digests & nvme::kDigestData) != 0};
  send_framing_ = rules_.framing;
  send_framing_.pda = request.hpda;
  phase_ = Phase::connect;
}

void Connection::begin_capsule(const nvme::PduHeader& header) {
  request_ = {
      .sqe = nvme::read_wire<nvme::CapsuleCmd>(rx_.buffered()).sqe, .data = {}, .data_bytes = header.data};
  rx_.consume(header.prefix);
  sqhd_ = static_cast<std::uint16_t>((sqhd_ + 1U) % entries_);
  if (header.data == 0) return execute(std::exchange(request_, {}));
  request_.data = allocate_bytes(header.data);
  rx_.expect_data({request_.data.get(), header.data}, header.has_ddgst);
}

void Connection::begin_h2c_data(const nvme::PduHeader& header) {
  const auto pdu = nvme::read_wire<nvme::DataPdu>(rx_.buffered());
  const auto bad = [this](nvme::FatalStatus status, std::size_t offset) {
    terminate({status, static_cast<std::uint32_t>(offset)}, rx_.buffered());
  };
  auto* const transfer = transfers_.find(pdu.ttag);
  if (transfer == nullptr) return bad(nvme::FatalStatus::invalid_header_field, kTtagOffset);
  if (transfer->cid != pdu.cccid) return bad(nvme::FatalStatus::invalid_header_field, kCccidOffset);
  if (pdu.datal != header.data) return bad(nvme::FatalStatus::invalid_header_field, kDatalOffset);
  const auto left = transfer->command.size - transfer->received;
  if (pdu.datao != transfer->received || pdu.datal > left) {
    return bad(nvme::FatalStatus::data_out_of_range, kDataoOffset);
  }
  if (header.flag(nvme::kPduLast) != (pdu.datal == left))
    return bad(nvme::FatalStatus::invalid_header_field, 1);
  rx_.consume(header.prefix);
  h2c_tag_ = pdu.ttag;
  h2c_bytes_ = pdu.datal;
  rx_.expect_data({transfer->bytes.get() + transfer->received, pdu.datal}, header.has_ddgst);
}

void Connection::end_data() {
  if (h2c_tag_) return end_h2c_data(*std::exchange(h2c_tag_, std::nullopt));
  const auto request = std::exchange(request_, {});
  // A bad data digest harms its command alone (3.3.2.1.2, "non-fatal").
  if (!digest_holds()) return respond(request.sqe.cid, nvme::kTransientTransportError);
  execute(request);
}

// A host that pads what it computes digests of expects the same of this side.
bool Connection::digest_holds() {
  if (rx_.digest() == nvme::DataDigest::padded) tx_.pad_digests();
  return rx_.digest() != nvme::DataDigest::wrong;
}

void Connection::end_h2c_data(std::uint16_t tag) {
  auto* const transfer = transfers_.find(tag);
  transfer->received += h2c_bytes_;
  transfer->digest_failed |= !digest_holds();
  if (transfer->received < transfer->command.size) return;
  auto done = transfers_.finish(tag);
  if (done.digest_failed) {
    transfers_.give_back(done.command.size);
    return respond(done.cid, nvme::kTransientTransportError);
  }
  finish_store(*this, done.cid, done.command, {.bytes = std::move(done.bytes), .size = done.command.size},
               done.command.size);
}

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
  *timer = target_.reactor().call_after(delay, [this, timer, request] {
    delayed_.erase(*timer);
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

void Connection::attach(Controller& controller, std::uint16_t qid, std::uint16_t entries,
                        bool sq_flow_control) {
  controller_ = &controller;
  qid_ = qid;
  entries_ = entries;
  sqhd_ = static_cast<std::uint16_t>(1U % entries_);
  sq_flow_control_ = sq_flow_control;
  phase_ = Phase::live;
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
  transfer.deadline =
      target_.reactor().now() + time_for(transfer.command.size, target_.config().stall_timeout);
  nvme::R2t pdu;
  pdu.cccid = transfer.cid;
  pdu.ttag = tag;
  pdu.r2tl = transfer.command.size;
  tx_.push(pdu, send_framing_);
}

void Connection::flush() {
  while (phase_ != Phase::closed) {
    if (tx_.flush(socket_.get()) == TxQueue::Result::failed) return close("connection reset");
    if (!paused_ || held_bytes() > kMaxOutput / 2) break;
    paused_ = false;
    process();  // commands that are in the buffer already raise no event of the socket
  }
  if (phase_ == Phase::terminating && tx_.empty()) ::shutdown(socket_.get(), SHUT_WR);
  if (phase_ != Phase::closed) update_interest();
}

void Connection::update_interest() {
  const std::uint32_t wanted = (paused_ ? 0U : EPOLLIN) | (tx_.empty() ? 0U : EPOLLOUT);
  if (wanted != interest_) target_.reactor().modify(socket_.get(), wanted);
  interest_ = wanted;
}

// 3.1.3: a fatal error is told once, with the header at fault; then nothing but the end of the connection
// follows.
void Connection::terminate(const nvme::FatalError& error, std::span<const std::byte> header) {
  target_.count_fatal_error(*this, error);
  nvme::TermReq pdu;
  pdu.fes = static_cast<std::uint16_t>(error.status);
  pdu.fei_low = static_cast<std::uint16_t>(error.info);
  pdu.fei_high = static_cast<std::uint16_t>(error.info >> 16U);
  TxQueue::Payload payload;
  const auto bytes = std::min(header.size(), nvme::kTermDataMax);
  if (bytes > 0) {
    auto copy = allocate_bytes(bytes);
    std::memcpy(copy.get(), header.data(), bytes);
    payload.bytes = {copy.get(), bytes};
    payload.hold = std::move(copy);
  }
  tx_.push(pdu, {}, std::move(payload));
  phase_ = Phase::terminating;
  paused_ = false;
  phase_deadline_ = target_.reactor().now() + kTerminationTime;
}

// Reads what still comes, so that the host gets the termination request and not a reset.
void Connection::drain() {
  std::array<std::byte, 16384> ignored;
  for (int reads = 0; reads < kReadsPerEvent; ++reads) {
    const auto got = ::recv(socket_.get(), ignored.data(), ignored.size(), MSG_DONTWAIT);
    if (got == 0) return close("terminated");
    if (got < 0) return;
  }
}

void Connection::watch_partial_pdu(TimePoint now) {
  if (!rx_.partial() || paused_) {
    pdu_deadline_.reset();
  } else if (!pdu_deadline_) {
    pdu_deadline_ = now + target_.config().stall_timeout;
  }
}

void Connection::check_deadlines(TimePoint now) {
  if (phase_ == Phase::closed) return;
  if (phase_ != Phase::live && now > phase_deadline_) {
    return close(phase_ == Phase::terminating ? "terminated" : "handshake not finished in time");
  }
  if (pdu_deadline_ && now > *pdu_deadline_) return close("a PDU did not arrive in full in time");
  if (transfers_.overdue(now)) return close("data asked for did not arrive in time");
  if (tx_.empty()) {
    tx_deadline_.reset();
  } else if (!tx_deadline_ || tx_.sent() != tx_sent_) {
    tx_sent_ = tx_.sent();
    tx_deadline_ = now + time_for(tx_.head_bytes(), target_.config().stall_timeout);
  } else if (now > *tx_deadline_) {
    close("the host does not take its answers");
  }
}

void Connection::close(std::string_view why) noexcept {
  if (std::exchange(phase_, Phase::closed) == Phase::closed) return;
  target_.reactor().remove(socket_.get());
  socket_.reset();
  for (const auto timer : delayed_)
    target_.reactor().cancel(timer);
  delayed_.clear();
  target_.budget().leave_line(*this);
  transfers_.clear();
  target_.connection_closed(*this, std::exchange(controller_, nullptr), why);
}

}  // namespace akv::softcard
