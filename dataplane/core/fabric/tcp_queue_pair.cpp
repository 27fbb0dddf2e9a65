#include "fabric/tcp_queue_pair.hpp"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "base/card_socket.hpp"
#include "nvme/status.hpp"

namespace akv::fabric {
namespace {

using nvme::FatalStatus;

constexpr std::uint32_t kWorthWaiting = 64U << 10U;
constexpr std::uint32_t kMostAwaited = 128U << 10U;

Fault refuse(std::string reason, FatalStatus status, std::size_t info = 0, Ending ending = Ending::protocol) {
  return {"the target broke the protocol: " + std::move(reason),
          nvme::FatalError{status, static_cast<std::uint32_t>(info)}, ending};
}

Fault unknown_command(std::uint16_t cid, std::size_t offset) {
  return refuse("no outstanding command has id " + std::to_string(cid), FatalStatus::invalid_header_field,
                offset, Ending::wrong_id);
}

std::uint8_t wanted_digests(const TcpQueuePairConfig& config) {
  const unsigned header = config.header_digest == DigestPolicy::off ? 0U : nvme::kDigestHeader;
  const unsigned data = config.data_digest == DigestPolicy::off ? 0U : nvme::kDigestData;
  return static_cast<std::uint8_t>(header | data);
}

std::uint32_t allowed_r2ts(const TcpQueuePairConfig& config) {
  return std::clamp<std::uint32_t>(config.max_r2ts, 1, Grants::kMost);
}

}  // namespace

TcpQueuePair::TcpQueuePair(Reactor& reactor, const TcpQueuePairConfig& config, QueuePairClient& client)
    : reactor_(reactor),
      config_(config),
      client_(client),
      slots_(std::clamp<std::uint32_t>(config.depth, 1, SlotTable::kMaxSlots - 1)),
      sender_(*this, slots_.size() + 1),
      receiver_(*this, config.hpda) {}

TcpQueuePair::~TcpQueuePair() {
  shut();
}

void TcpQueuePair::start() {
  const auto& address = config_.address;
  socket_.reset(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket_) return end(system_fault("socket", errno));
  set_card_socket_options(socket_.get());
  if (::connect(socket_.get(), address.get(), address.size()) != 0 && errno != EINPROGRESS) {
    return end(system_fault("connect to " + address.text(), errno));
  }
  state_ = State::connecting;
  reactor_.add(socket_.get(), EPOLLOUT, *this);
  connect_timer_ = reactor_.call_after(config_.connect_timeout, [this] {
    connect_timer_ = 0;
    end({config_.address.text() + " did not answer within " +
             std::to_string(config_.connect_timeout.count()) + " ms",
         std::nullopt, state_ == State::connecting ? Ending::unreachable : Ending::unanswered});
  });
}

void TcpQueuePair::on_events(std::uint32_t events) noexcept {
  if (state_ == State::connecting) return finish_connect();
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
    if (const auto fault = receiver_.receive(socket_.get())) return fail(*fault);
    if (state_ == State::open) await_payload();
  }
  flush();
}

// Of a long payload half of what is missing is waited for, within bounds: reads are few, go on beside the
// target's sending, and leave little to copy when the last byte comes. A target that stops before that is
// noticed by its deadlines.
void TcpQueuePair::await_payload() noexcept {
  const std::uint32_t half = receiver_.missing() / 2;
  await_bytes(half < kWorthWaiting ? 1 : std::min(half, kMostAwaited));
}

void TcpQueuePair::await_bytes(std::uint32_t bytes) noexcept {
  if (bytes == awaited_) return;
  const int wanted = static_cast<int>(bytes);
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted) == 0) awaited_ = bytes;
}

void TcpQueuePair::finish_connect() noexcept {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return end(system_fault("connect to " + config_.address.text(), error));
  state_ = State::greeting;
  reactor_.modify(socket_.get(), EPOLLIN);
  send_ic_req();
}

void TcpQueuePair::send_ic_req() noexcept {
  nvme::IcReq request;
  request.hpda = config_.hpda;
  request.dgst = wanted_digests(config_);
  request.maxr2t = allowed_r2ts(config_) - 1;
  handshake_.prepare_bare(request);
  handshake_.owner = SlotTable::kMaxSlots;
  sender_.push(handshake_);
  flush();
}

TcpQueuePair::Judgement TcpQueuePair::on_ic_resp(const nvme::IcResp& response) {
  const auto bad = [](std::string what, std::size_t offset) {
    return refuse("ICResp with " + std::move(what), FatalStatus::unsupported_parameter, offset);
  };
  if (response.pfv != 0) return bad("PFV " + std::to_string(response.pfv), offsetof(nvme::IcResp, pfv));
  if (response.cpda > nvme::kPdaMax) {
    return bad("CPDA " + std::to_string(response.cpda), offsetof(nvme::IcResp, cpda));
  }
  if (response.maxh2cdata < nvme::kMinMaxH2cData || response.maxh2cdata % 4 != 0) {
    return bad("MAXH2CDATA " + std::to_string(response.maxh2cdata), offsetof(nvme::IcResp, maxh2cdata));
  }
  if ((response.dgst & ~wanted_digests(config_)) != 0) {
    return bad("digests that were not asked for", offsetof(nvme::IcResp, dgst));
  }
  framing_ = {(response.dgst & nvme::kDigestHeader) != 0, (response.dgst & nvme::kDigestData) != 0,
              response.cpda};
  if ((config_.header_digest == DigestPolicy::require && !framing_.hdgst) ||
      (config_.data_digest == DigestPolicy::require && !framing_.ddgst)) {
    return Fault{"the target does not agree to a digest that is required"};
  }
  max_h2c_ = response.maxh2cdata;
  // Linux nvmet (6.1) compares the data digest of every H2CData with one over the whole transfer, so with
  // data digests a transfer is not cut into more pieces than the target asks for.
  if (!framing_.ddgst) {
    max_h2c_ = std::min(max_h2c_, std::max(config_.h2c_bytes & ~3U, nvme::kMinMaxH2cData));
  }
  receiver_.use_digests(framing_.hdgst, framing_.ddgst);
  reactor_.cancel(std::exchange(connect_timer_, 0));
  state_ = State::open;
  client_.on_open();
  return std::nullopt;
}

bool TcpQueuePair::submit(const Command& command, std::uint32_t tag) noexcept {
  if (state_ != State::open || slots_.full()) return false;
  CommandSlot& slot = slots_.take();
  if (!slot.data.assign(command.data)) {
    slots_.release(slot);
    return false;
  }
  slot.tag = tag;
  if (slot.data.bytes() > 0) slot.direction = command.direction;
  slot.in_capsule =
      slot.direction == Direction::to_target && (command.must_be_in_capsule || in_capsule(slot.data.bytes()));
  push_capsule(slot, command.sqe);
  return true;
}

std::optional<std::uint16_t> TcpQueuePair::command_id(std::uint32_t tag) const noexcept {
  const CommandSlot* const slot = slots_.find_tag(tag);
  return slot == nullptr ? std::nullopt : std::optional(slot->cid);
}

void TcpQueuePair::push_capsule(CommandSlot& slot, nvme::Sqe sqe) noexcept {
  const std::uint32_t bytes = slot.direction == Direction::none ? 0 : slot.data.bytes();
  sqe.flags = nvme::kFlagSgl;
  sqe.cid = slot.cid;
  sqe.sgl = slot.in_capsule ? nvme::in_capsule_sgl(bytes) : nvme::transport_sgl(bytes);
  nvme::CapsuleCmd capsule;
  capsule.sqe = sqe;
  slot.out.prepare(capsule, slot.data, 0, slot.in_capsule ? bytes : 0, framing_);
  slot.queued = true;
  sender_.push(slot.out);
}

// The next H2CData PDU of what the oldest open R2T asked for.
void TcpQueuePair::push_data(CommandSlot& slot) noexcept {
  const Grant& grant = slot.grants.front();
  const std::uint32_t bytes = std::min(max_h2c_, grant.end - slot.pushed);
  nvme::DataPdu pdu;
  pdu.cccid = slot.cid;
  pdu.ttag = grant.ttag;
  pdu.datao = slot.pushed;
  pdu.datal = bytes;
  if (slot.pushed + bytes == grant.end) pdu.common.flags = nvme::kPduLast;
  slot.out.prepare(pdu, slot.data, slot.pushed, bytes, framing_);
  slot.pushed += bytes;
  slot.queued = true;
  sender_.push(slot.out);
}

void TcpQueuePair::on_sent(OutgoingPdu& pdu) noexcept {
  if (pdu.owner == SlotTable::kMaxSlots) return;
  CommandSlot& slot = slots_[pdu.owner];
  slot.queued = false;
  slot.capsule_sent = true;
  if (slot.held) return complete(slot);
  if (slot.grants.count() > 0 && slot.grants.front().end == slot.pushed) slot.grants.pop();
  if (slot.grants.count() > 0) push_data(slot);
}

TcpQueuePair::Judgement TcpQueuePair::on_response(const nvme::Cqe& cqe) {
  CommandSlot* const slot = slots_.find(cqe.cid);
  if (slot == nullptr || slot->held) {
    return unknown_command(cqe.cid, sizeof(nvme::CommonHeader) + offsetof(nvme::Cqe, cid));
  }
  if (!slot->capsule_sent) return refuse("response to a command not sent yet", FatalStatus::sequence_error);
  slot->response = {.cqe = cqe, .received = slot->received};
  if (slot->queued) {
    // A PDU of it is in line or partly sent: the buffer is free only when that has left.
    slot->held = true;
    slot->out.cancelled = true;
    return std::nullopt;
  }
  complete(*slot);
  return std::nullopt;
}

// What the target holds for a success fails when its data did not come whole (TCP 3.3.1.1).
void TcpQueuePair::complete(CommandSlot& slot) noexcept {
  Response response = slot.response;
  response.wrong_digest = slot.wrong_digest;
  if (slot.wrong_digest && response.cqe.status() == nvme::kSuccess) {
    response.cqe.set_status(nvme::kTransientTransportError);
  }
  const std::uint32_t tag = slot.tag;
  slots_.release(slot);
  client_.on_response(tag, response);
}

TcpQueuePair::Judgement TcpQueuePair::on_r2t(const nvme::R2t& r2t) {
  CommandSlot* const slot = slots_.find(r2t.cccid);
  if (slot == nullptr) return unknown_command(r2t.cccid, offsetof(nvme::R2t, cccid));
  if (slot->direction != Direction::to_target || slot->in_capsule || !slot->capsule_sent || slot->held) {
    return refuse("R2T for a command that has no data to send", FatalStatus::sequence_error);
  }
  if (slot->grants.count() == allowed_r2ts(config_)) {
    return refuse("more R2Ts at once than were allowed", FatalStatus::data_limit_exceeded);
  }
  if (r2t.r2to != slot->granted) {
    return refuse("R2T out of order", FatalStatus::invalid_header_field, offsetof(nvme::R2t, r2to));
  }
  if (r2t.r2tl == 0 || r2t.r2tl > slot->data.bytes() - slot->granted) {
    return refuse("R2T beyond the command's data", FatalStatus::data_out_of_range, offsetof(nvme::R2t, r2tl),
                  Ending::wrong_length);
  }
  slot->granted += r2t.r2tl;
  slot->grants.push({.end = slot->granted, .ttag = r2t.ttag});
  if (!slot->queued) push_data(*slot);
  return std::nullopt;
}

TcpQueuePair::Judgement TcpQueuePair::on_c2h_data(const nvme::DataPdu& pdu, std::uint32_t bytes,
                                                  PayloadTarget& target) {
  CommandSlot* const slot = slots_.find(pdu.cccid);
  if (slot == nullptr) return unknown_command(pdu.cccid, offsetof(nvme::DataPdu, cccid));
  if (slot->direction != Direction::from_target || !slot->capsule_sent || slot->data_ended) {
    return refuse("C2HData for a command that expects none", FatalStatus::sequence_error);
  }
  if (pdu.datao != slot->received) {
    return refuse("C2HData out of order", FatalStatus::invalid_header_field, offsetof(nvme::DataPdu, datao));
  }
  if (bytes > slot->data.bytes() - slot->received) {
    return refuse("C2HData beyond the command's buffer", FatalStatus::data_out_of_range,
                  offsetof(nvme::DataPdu, datal), Ending::wrong_length);
  }
  target = {&slot->data, slot->received};
  return std::nullopt;
}

void TcpQueuePair::on_payload(std::uint16_t cid, std::uint32_t end) noexcept {
  if (const CommandSlot* const slot = slots_.find(cid)) client_.on_arrived(slot->tag, end);
}

TcpQueuePair::Judgement TcpQueuePair::on_c2h_data_end(const nvme::DataPdu& pdu, bool digest_holds) {
  CommandSlot* const slot = slots_.find(pdu.cccid);
  if (slot == nullptr) return unknown_command(pdu.cccid, offsetof(nvme::DataPdu, cccid));
  slot->received += pdu.datal;
  if (!digest_holds) slot->wrong_digest = true;
  slot->data_ended = (pdu.common.flags & nvme::kPduLast) != 0;
  if ((pdu.common.flags & nvme::kPduDataSuccess) == 0) return std::nullopt;
  slot->response = {.cqe = {.cid = slot->cid}, .received = slot->received, .synthetic = true};
  complete(*slot);
  return std::nullopt;
}

void TcpQueuePair::flush() noexcept {
  if (state_ != State::open && state_ != State::greeting) return;
  bool blocked = false;
  const auto fault = sender_.flush(socket_.get(), blocked);
  if (fault) return fail(*fault);
  if (state_ != State::closed) watch(blocked);
}

void TcpQueuePair::watch(bool writable) noexcept {
  if (watching_writable_ == writable) return;
  watching_writable_ = writable;
  reactor_.modify(socket_.get(), writable ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void TcpQueuePair::fail(const Fault& fault) noexcept {
  if (state_ == State::closed) return;
  if (fault.fatal && !sender_.within_pdu()) send_term_req(*fault.fatal);
  end({config_.address.text() + ": " + fault.reason, std::nullopt, fault.ending});
}

// Best effort: the connection ends either way.
void TcpQueuePair::send_term_req(const nvme::FatalError& error) noexcept {
  const auto header = receiver_.offending_header();
  nvme::TermReq request;
  request.common.type = static_cast<std::uint8_t>(nvme::PduType::h2c_term_req);
  request.common.plen = static_cast<std::uint32_t>(sizeof request + header.size());
  request.fes = static_cast<std::uint16_t>(error.status);
  request.fei_low = static_cast<std::uint16_t>(error.info);
  request.fei_high = static_cast<std::uint16_t>(error.info >> 16U);
  std::array<std::byte, sizeof request + nvme::kTermDataMax> bytes;
  nvme::write_wire(std::span(bytes), request);
  std::ranges::copy(header, bytes.begin() + sizeof request);
  [[maybe_unused]] const auto sent =
      ::send(socket_.get(), bytes.data(), request.common.plen, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void TcpQueuePair::shut() noexcept {
  receiver_.stop();
  sender_.stop();
  reactor_.cancel(std::exchange(connect_timer_, 0));
  if (!socket_) return;
  reactor_.remove(socket_.get());
  socket_.reset();
}

void TcpQueuePair::close(const std::string& reason) noexcept {
  end({reason, std::nullopt, Ending::asked});
}

void TcpQueuePair::end(const Fault& fault) noexcept {
  if (state_ == State::closed) return;
  state_ = State::closed;
  shut();
  client_.on_closed(fault.ending, fault.reason);
}

std::shared_ptr<QueuePair> make_tcp_queue_pair(Reactor& reactor, const TcpQueuePairConfig& config,
                                               QueuePairClient& client) {
  return std::make_shared<TcpQueuePair>(reactor, config, client);
}

}  // namespace akv::fabric
