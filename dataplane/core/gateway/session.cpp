#include "gateway/session.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/bytes.hpp"
#include "base/events.hpp"

namespace akv::gateway {
namespace {

// Then other sessions have their turn.
constexpr std::size_t kReadsPerEvent = 16;
constexpr std::size_t kFramesPerEvent = 64;

}  // namespace

Session::Session(const SessionContext& context, UniqueFd socket, bool local)
    : context_(context),
      socket_(std::move(socket)),
      local_(local),
      id_(context.shared.next_session.fetch_add(1, std::memory_order_relaxed)),
      handshake_(context.shared.secrets),
      reader_(context.shared.inline_memory),
      interest_(EPOLLIN),
      state_since_(context.reactor.now()),
      flush_(context.reactor, [this] { flush(); }) {
  context_.reactor.add(socket_.get(), interest_, *this);
  context_.counters.add(Counter::sessions_opened);
  context_.shared.sessions.fetch_add(1, std::memory_order_relaxed);
}

Session::~Session() {
  close();
  context_.shared.sessions.fetch_sub(1, std::memory_order_relaxed);
}

void Session::close() noexcept {
  if (std::exchange(state_, State::closed) == State::closed) return;
  context_.reactor.remove(socket_.get());
  context_.reactor.cancel(resumption_);
  socket_.reset();
  abandon();
  for (Batch* const batch : lingering_)
    batch->session = nullptr;
  lingering_.clear();
  memory_.reset();
  loans_.reset();
  regions_.clear();
  descriptors_.clear();
  context_.counters.add(Counter::sessions_closed);
  context_.host.ended(*this);
}

void Session::on_events(std::uint32_t events) noexcept {
  if ((events & EPOLLOUT) != 0) flush();
  if (state_ == State::closed || (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  if (reads()) return read_some();
  // Nobody waits for the answers, and the event would come again and again.
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) close();
}

void Session::read_some() {
  std::size_t left = kFramesPerEvent;
  for (std::size_t i = 0; i < kReadsPerEvent; ++i) {
    if (state_ == State::closed) return;
    if (state_ == State::closing) return drop_input();
    // What was asked for by a client that does not take the answers stays in the socket.
    if (!reads()) return flush_.request();
    const std::span<std::byte> into = reader_.buffer();
    const long got = receive(into);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return close();
    reader_.received(static_cast<std::size_t>(got));
    take_frames(left);
    check_descriptors();
    if (static_cast<std::size_t>(got) < into.size()) return;
  }
}

// At most `left`, and only while the client takes the answers: small requests can have large ones, and many
// fit one read. What is left waits for resume().
void Session::take_frames(std::size_t& left) {
  behind_ = false;
  try {
    while (state_ == State::hello || state_ == State::open) {
      behind_ = reader_.in_frame() && (left == 0 || !may_take());
      if (behind_) break;
      auto frame = reader_.next();
      if (!frame) break;
      --left;
      frame_since_.reset();
      take(*frame);
    }
  } catch (const BadStream& bad) {
    return fail_stream(bad.text, bad.request_id, wire::FrameStatus::bad_request);
  }
  if (behind_) flush_.request();
  if (behind_ || !reader_.in_frame()) {
    frame_since_.reset();
  } else if (!frame_since_) {
    frame_since_ = context_.reactor.now();
  }
}

// No event tells of frames that were received already: they are taken after the others' events, as soon as
// they may be.
void Session::resume() {
  if (!behind_ || resumption_ != 0 || !may_take()) return;
  resumption_ = context_.reactor.call_at(context_.reactor.now(), [this] {
    resumption_ = 0;
    std::size_t left = kFramesPerEvent;
    take_frames(left);
    check_descriptors();
    flush_.request();
  });
}

// So that the last ERROR arrives: closing a socket with unread bytes would reset the connection.
void Session::drop_input() {
  std::array<std::byte, 16'384> scratch;
  for (std::size_t i = 0; i < kReadsPerEvent; ++i) {
    const ssize_t got = ::recv(socket_.get(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return close();
  }
}

void Session::flush() {
  if (state_ == State::closed) return;
  const std::size_t before = output_.pending();
  switch (output_.flush(socket_.get())) {
    case Output::Flush::broken:
      return close();
    case Output::Flush::blocked:
      give_time(before - output_.pending());
      break;
    case Output::Flush::done:
      write_by_.reset();
      if (state_ == State::closing) ::shutdown(socket_.get(), SHUT_WR);
      if (shutting_down_ && outstanding_.empty()) return close();
      break;
  }
  update_interest();
  resume();
}

// Bytes that the client takes give it more time as far as they came fast enough: who reads them one by one
// does not keep the memory of a reply for hours.
void Session::give_time(std::size_t taken) {
  const TimePoint most = context_.reactor.now() + limits().write_timeout;
  const auto earned = time_for(taken, limits().slowest_reader_bytes_a_second);
  write_by_ = write_by_ ? std::min<TimePoint>(most, *write_by_ + earned) : most;
}

// A session that has its share of private memory waits until some of it comes back; others go on meanwhile.
bool Session::may_take() const noexcept {
  return output_.pending() <= limits().max_output &&
         outstanding_inline_ + output_.held() <= limits().session_inline_bytes;
}

// Bytes that come are looked at now.
bool Session::reads() const noexcept {
  return state_ == State::closing || (!behind_ && output_.pending() <= limits().max_output);
}

void Session::update_interest() {
  std::uint32_t wanted = 0;
  if (output_.pending() != 0) wanted |= EPOLLOUT;
  if (reads()) wanted |= EPOLLIN;
  // The rest of a frame could not come while nothing was read.
  if ((wanted & ~interest_ & EPOLLIN) != 0 && frame_since_) frame_since_ = context_.reactor.now();
  if (std::exchange(interest_, wanted) != wanted) context_.reactor.modify(socket_.get(), wanted);
}

void Session::tick() {
  const TimePoint now = context_.reactor.now();
  if (state_ == State::hello && now - state_since_ > limits().hello_timeout) {
    return fail_stream("no HELLO came in time", 0, wire::FrameStatus::bad_request);
  }
  if (state_ == State::closing && now - state_since_ > limits().close_timeout) return close();
  const bool reads = (interest_ & EPOLLIN) != 0;
  if (state_ == State::open && reads && frame_since_ && now - *frame_since_ > limits().frame_timeout) {
    return fail_stream("a frame was not finished in time", 0, wire::FrameStatus::bad_request);
  }
  if (write_by_ && now > *write_by_) {
    context_.counters.add(Counter::sessions_stalled);
    close();
  }
}

void Session::shut_down() {
  shutting_down_ = true;
  flush_.request();
}

void Session::fail_stream(std::string_view text, std::uint64_t request_id, wire::FrameStatus status) {
  context_.counters.add(Counter::protocol_errors);
  error({.request_id = request_id}, status, text);
  begin_closing();
}

// Nothing more is taken from the client.
void Session::begin_closing() {
  state_ = State::closing;
  state_since_ = context_.reactor.now();
  frame_since_.reset();
  behind_ = false;
  abandon();
  flush_.request();
}

// What is outstanding is nobody's any more.
void Session::abandon() noexcept {
  for (Batch* const batch : outstanding_) {
    batch->session = nullptr;
    batch->abandoned.store(true, std::memory_order_relaxed);
  }
  outstanding_.clear();
}

void Session::finished(const std::shared_ptr<Batch>& batch) {
  std::erase(outstanding_, batch.get());
  outstanding_entries_ -= batch->entries.size();
  outstanding_inline_ -= batch->inline_bytes();
  const auto lost = std::ranges::find_if(batch->regions, [](const auto& region) { return region->broken(); });
  if (batch->regions.empty() || lost != batch->regions.end()) {
    batch->session = nullptr;
  } else {
    lingering_.push_back(batch.get());
  }
  if (lost != batch->regions.end()) return fail_region(**lost, batch->request_id);
  encode_reply(batch, output_);
  flush_.request();
}

void Session::refuse(const wire::Header& request, wire::FrameStatus status, std::string_view text) {
  encode_refusal(request, static_cast<std::uint16_t>(request.opcode | wire::kReply), status,
                 as_byte_span(text), output_);
  flush_.request();
}

void Session::error(const wire::Header& request, wire::FrameStatus status, std::string_view text) {
  encode_refusal(request, wire::kErrorOpcode, status, as_byte_span(text), output_);
  flush_.request();
}

}  // namespace akv::gateway
