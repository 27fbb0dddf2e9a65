#include "client/stream.hpp"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "base/bytes.hpp"

namespace akv::client {
namespace {

constexpr std::uint32_t kMagic = 0x31564B41;
constexpr std::size_t kStagingBytes = std::size_t{256} << 10U;
constexpr int kReadsPerTurn = 16;
constexpr std::size_t kPartsPerSend = 16;

std::int64_t nanoseconds(TimePoint when) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
}

std::string reason(int error) {
  return std::generic_category().message(error);
}

FrameHeader decode_header(const std::byte* from) noexcept {
  return {.opcode = load_le<std::uint16_t>(from + 8),
          .status = load_le<std::uint16_t>(from + 10),
          .count = load_le<std::uint32_t>(from + 12),
          .request_id = load_le<std::uint64_t>(from + 16),
          .dialog_id = load_le<std::uint64_t>(from + 24)};
}

// Bytes taken; 0 when the socket is full, and -1 with errno otherwise.
long send_parts(int socket, std::span<iovec> parts, int descriptor) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  while (true) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) return -1;
  }
}

}  // namespace

void encode_header(const FrameHeader& header, std::size_t body_bytes, std::span<std::byte> to) noexcept {
  store_le(to.data(), kMagic);
  store_le(to.data() + 4, static_cast<std::uint32_t>(body_bytes));
  store_le(to.data() + 8, header.opcode);
  store_le(to.data() + 10, header.status);
  store_le(to.data() + 12, header.count);
  store_le(to.data() + 16, header.request_id);
  store_le(to.data() + 24, header.dialog_id);
}

Stream::Stream(UniqueFd socket, UniqueFd attention, const Limits& limits)
    : socket_(std::move(socket)),
      attention_(std::move(attention)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      limits_(limits),
      last_received_(nanoseconds(Clock::now())),
      staging_(kStagingBytes) {
  if (!wake_) throw std::system_error(errno, std::generic_category(), "eventfd");
  add_fork_aware(*this);
}

Stream::~Stream() {
  remove_fork_aware(*this);
}

// Its threads are the parent's: nobody reads here, and nobody waits. To notify those would take a lock that
// one of them may have had, and to destroy the condition would wait for them.
void Stream::after_fork_in_child() {
  failure_ = Failure{.protocol = false, .text = "made before a fork"};
  waiters_ = 0;
  reading_ = false;
  std::construct_at(&changed_);
  mutex_.unlock();
}

bool Stream::has_room(std::uint32_t entries) {
  const std::lock_guard lock(mutex_);
  const bool fits = entries_used_ == 0 || entries_used_ + entries <= limits_.max_entries;
  return credits_used_ < limits_.credits && fits;
}

void Stream::take_credit(std::uint32_t entries) {
  const std::lock_guard lock(mutex_);
  ++credits_used_;
  entries_used_ += entries;
}

void Stream::give_back(std::uint32_t entries) {
  const std::lock_guard lock(mutex_);
  --credits_used_;
  entries_used_ -= entries;
}

std::shared_ptr<Exchange> Stream::begin(std::uint64_t request_id, std::uint32_t count,
                                        std::vector<std::byte> frame, bool told, Send when) {
  auto exchange = std::make_shared<Exchange>();
  exchange->request_id = request_id;
  exchange->count = count;
  exchange->told = told;
  const std::lock_guard lock(mutex_);
  if (failure_) return nullptr;
  ++credits_used_;
  entries_used_ += count;
  exchanges_.emplace(request_id, exchange);
  Outgoing part{.bytes = std::move(frame), .descriptor = {}};
  if (when == Send::now) {
    queue(std::move(part));
  } else {
    output_.push_back(std::move(part));
  }
  return exchange;
}

void Stream::send(std::vector<std::byte> bytes, UniqueFd descriptor) {
  const std::lock_guard lock(mutex_);
  queue({.bytes = std::move(bytes), .descriptor = std::move(descriptor)});
}

void Stream::queue(Outgoing part) {
  output_.push_back(std::move(part));
  flush();
  if (output_.empty() || !reading_) return;
  // The reader waits without looking whether the socket takes more.
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_.get(), &one, sizeof one));
}

void Stream::flush() {
  while (!output_.empty() && !failure_) {
    const long taken = send_some();
    if (taken < 0) return fail(false, reason(errno));
    if (taken == 0) return;
    sent(static_cast<std::size_t>(taken));
  }
}

// What can go in one message: at most one descriptor, and that with its first byte.
long Stream::send_some() {
  std::array<iovec, kPartsPerSend> vectors;
  std::size_t count = 0;
  for (Outgoing& part : output_) {
    if (count == vectors.size() || (count != 0 && part.descriptor)) break;
    vectors[count++] = {part.bytes.data() + part.sent, part.bytes.size() - part.sent};
  }
  return send_parts(socket_.get(), std::span(vectors).first(count), output_.front().descriptor.get());
}

void Stream::sent(std::size_t bytes) {
  output_.front().descriptor.reset();
  while (bytes != 0) {
    Outgoing& part = output_.front();
    const std::size_t taken = std::min(bytes, part.bytes.size() - part.sent);
    part.sent += taken;
    bytes -= taken;
    if (part.sent == part.bytes.size()) output_.pop_front();
  }
}

Waited Stream::wait(const std::shared_ptr<Exchange>& exchange, TimePoint deadline) {
  std::unique_lock lock(mutex_);
  ++waiters_;
  Waited result = Waited::replied;
  while (!exchange->reply) {
    if (failure_) {
      result = Waited::lost;
      break;
    }
    if (Clock::now() >= deadline) {
      result = Waited::timed_out;
      break;
    }
    if (reading_) {
      changed_.wait_until(lock, deadline);
      continue;
    }
    reading_ = true;
    lock.unlock();
    attend(deadline);
    lock.lock();
    end_reading();
  }
  --waiters_;
  // Somebody else reads on.
  if (waiters_ != 0) changed_.notify_all();
  return result;
}

void Stream::disown(const std::shared_ptr<Exchange>& exchange) {
  const std::lock_guard lock(mutex_);
  if (exchanges_.erase(exchange->request_id) != 0 || !exchange->reply) return;
  // The credit went back when the reply came; whoever takes that gives it back once more.
  ++credits_used_;
  entries_used_ += exchange->count;
  foreign_.push_back(*std::exchange(exchange->reply, std::nullopt));
}

// Waits until the socket is ready, and takes what is there.
void Stream::attend(TimePoint deadline) {
  const short events = static_cast<short>(POLLIN | (has_output() ? POLLOUT : 0));
  std::array<pollfd, 2> watched{pollfd{socket_.get(), events, 0}, pollfd{wake_.get(), POLLIN, 0}};
  if (!await(watched, deadline)) return;
  if (watched[1].revents != 0) {
    std::uint64_t count = 0;
    static_cast<void>(::read(wake_.get(), &count, sizeof count));
  }
  if ((watched[0].revents & POLLOUT) != 0) {
    const std::lock_guard lock(mutex_);
    flush();
  }
  if ((watched[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_some();
}

// A short wait is polled: to be woken up costs the gateway as well.
bool Stream::await(std::span<pollfd> watched, TimePoint deadline) {
  const auto look = [&](long milliseconds) {
    return ::poll(watched.data(), watched.size(), static_cast<int>(milliseconds)) > 0;
  };
  const TimePoint start = Clock::now();
  const auto polled = std::min<Patience::Time>(patience_.window(), deadline - start);
  if (patience_.poll(start, polled, [&] { return look(0); })) return true;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  const bool ready = look(std::clamp<long>(left, 0, 1 << 30));
  patience_.slept(Clock::now() - start);
  return ready;
}

void Stream::process() {
  {
    const std::lock_guard lock(mutex_);
    flush();
    if (reading_ || failure_) return;
    reading_ = true;
  }
  read_some();
  const std::lock_guard lock(mutex_);
  end_reading();
  changed_.notify_all();
}

// Who closes leaves the socket to who reads it.
void Stream::end_reading() {
  reading_ = false;
  if (closed_) socket_.reset();
}

// A body that is larger than the staging buffer is received where it stays.
void Stream::read_some() {
  for (int reads = 0; reads < kReadsPerTurn; ++reads) {
    const std::span<std::byte> into =
        large_ ? std::span(large_->body).subspan(filled_) : std::span(staging_).subspan(staged_);
    const ssize_t got = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      const std::string text = got == 0 ? "closed the connection" : reason(errno);
      const std::lock_guard lock(mutex_);
      return fail(false, text);
    }
    last_received_.store(nanoseconds(Clock::now()), std::memory_order_relaxed);
    const bool full = static_cast<std::size_t>(got) == into.size();
    if (large_) {
      filled_ += static_cast<std::size_t>(got);
      if (full) deliver(*std::exchange(large_, std::nullopt));
    } else {
      staged_ += static_cast<std::size_t>(got);
      take(std::span<const std::byte>(staging_).first(staged_));
    }
    if (!full) return;
  }
}

// Cuts what is staged into frames; the rest moves to the front.
void Stream::take(std::span<const std::byte> bytes) {
  while (bytes.size() >= kHeaderBytes && !large_) {
    const auto rest = begin_frame(bytes);
    if (rest.data() == bytes.data()) break;
    bytes = rest;
  }
  staged_ = large_ ? 0 : bytes.size();
  if (staged_ != 0) std::memmove(staging_.data(), bytes.data(), staged_);
}

// What follows the frame that `bytes` begin with; `bytes` themselves when it is not complete yet.
std::span<const std::byte> Stream::begin_frame(std::span<const std::byte> bytes) {
  const auto body_bytes = load_le<std::uint32_t>(bytes.data() + 4);
  if (load_le<std::uint32_t>(bytes.data()) != kMagic || body_bytes > limits_.max_body) {
    const std::lock_guard lock(mutex_);
    const bool magic = load_le<std::uint32_t>(bytes.data()) == kMagic;
    fail(true, magic ? "frame body of " + std::to_string(body_bytes) + " bytes is above the limit of " +
                           std::to_string(limits_.max_body)
                     : "frame does not begin with the magic of the protocol");
    return bytes;
  }
  const auto there = bytes.subspan(kHeaderBytes);
  Frame frame{.header = decode_header(bytes.data()), .body = {}};
  if (there.size() >= body_bytes) {
    frame.body.assign(there.begin(), there.begin() + body_bytes);
    deliver(std::move(frame));
    return there.subspan(body_bytes);
  }
  if (kHeaderBytes + body_bytes <= staging_.size()) return bytes;
  frame.body.resize(body_bytes);
  std::ranges::copy(there, frame.body.begin());
  filled_ = there.size();
  large_ = std::move(frame);
  return there.subspan(there.size());
}

void Stream::deliver(Frame frame) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = frame.header.request_id;
  if (const auto found = exchanges_.find(id); found != exchanges_.end()) {
    const auto exchange = found->second;
    exchanges_.erase(found);
    --credits_used_;
    entries_used_ -= exchange->count;
    exchange->reply = std::move(frame);
    if (waiters_ > 1) changed_.notify_all();
    if (exchange->told) told_.push_back(id);
    if (exchange->told || hungry_) call_attention();
    return;
  }
  foreign_.push_back(std::move(frame));
  call_attention();
}

std::vector<Frame> Stream::take_foreign() {
  const std::lock_guard lock(mutex_);
  return std::exchange(foreign_, {});
}

std::vector<std::uint64_t> Stream::take_told() {
  const std::lock_guard lock(mutex_);
  return std::exchange(told_, {});
}

bool Stream::attended() {
  const std::lock_guard lock(mutex_);
  return waiters_ != 0;
}

bool Stream::has_output() {
  const std::lock_guard lock(mutex_);
  return !output_.empty();
}

std::size_t Stream::pending() {
  const std::lock_guard lock(mutex_);
  return exchanges_.size();
}

std::optional<Stream::Failure> Stream::why() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(closed_, true)) return;
  fail(false, "the session is closed");
  if (!reading_) return socket_.reset();
  // Not by shutdown(), which would end the connection of a process that this one was forked from.
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_.get(), &one, sizeof one));
}

void Stream::set_hungry(bool hungry) {
  const std::lock_guard lock(mutex_);
  hungry_ = hungry;
}

void Stream::fail(bool protocol, std::string text) {
  if (failure_) return;
  failure_ = Failure{.protocol = protocol, .text = std::move(text)};
  changed_.notify_all();
  call_attention();
}

void Stream::call_attention() noexcept {
  // A full pipe means that whoever reads it wakes anyway.
  const char byte = 0;
  static_cast<void>(::send(attention_.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT));
}

}  // namespace akv::client
