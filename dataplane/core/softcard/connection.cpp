#include "softcard/connection.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "softcard/target.hpp"

namespace akv::softcard {
namespace {

constexpr int kReadsPerEvent = 8;
constexpr auto kTerminationTime = std::chrono::seconds(1);

}  // namespace

Connection::Connection(Target& target, UniqueFd socket, std::uint64_t id)
    : target_(target),
      socket_(std::move(socket)),
      id_(id),
      interest_(EPOLLIN),
      rules_{.role = nvme::Role::controller,
             .framing = {},
             .max_capsule_data = kAdminInCapsuleBytes,
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

void Connection::attach(Controller& controller, std::uint16_t qid, std::uint16_t entries,
                        bool sq_flow_control) {
  controller_ = &controller;
  qid_ = qid;
  entries_ = entries;
  sqhd_ = static_cast<std::uint16_t>(1U % entries_);
  sq_flow_control_ = sq_flow_control;
  if (qid != 0) rules_.max_capsule_data = target_.config().in_capsule_bytes;
  phase_ = Phase::live;
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

// Larger pieces get more time: a slow network is no fault.
std::chrono::milliseconds Connection::time_for(std::uint64_t bytes) const {
  return target_.config().stall_timeout * static_cast<std::int64_t>(1 + (bytes >> 20U));
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
    tx_deadline_ = now + time_for(tx_.head_bytes());
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
  end_capsule();
  target_.connection_closed(*this, std::exchange(controller_, nullptr), why);
}

}  // namespace akv::softcard
