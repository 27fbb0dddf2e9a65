#include "client/call.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

namespace akv::client {
namespace {

constexpr std::uint16_t kPut = 4;
constexpr std::uint16_t kGet = 5;
constexpr std::uint16_t kExists = 6;
constexpr std::uint16_t kBorrow = 12;
constexpr std::uint16_t kReturn = 13;
constexpr std::size_t kOffsetBytes = 8;
constexpr std::uint16_t kReply = 0x8000;
constexpr std::uint16_t kPrefixOnly = 1;
// How long a signal may wait for its handler.
constexpr auto kSignalPatience = std::chrono::milliseconds(200);

std::uint16_t opcode_of(CallKind kind) noexcept {
  switch (kind) {
    case CallKind::put:
      return kPut;
    case CallKind::get:
      return kGet;
    case CallKind::borrow:
      return kBorrow;
    case CallKind::give_back:
      return kReturn;
    case CallKind::exists:
    case CallKind::prefix:
      break;
  }
  return kExists;
}

FrameHeader header_of(const Session& session, CallKind kind, std::uint32_t count, std::uint64_t dialog) {
  return {.opcode = opcode_of(kind),
          .status = kind == CallKind::prefix ? kPrefixOnly : std::uint16_t{0},
          .count = count,
          .request_id = session.stream->next_request_id(),
          .dialog_id = dialog};
}

// Entries of a request that fits one frame and the session as it is now.
std::uint32_t fitting(const Session& session, Py_ssize_t entries) {
  if (entries < 0) throw nb::python_error();
  if (entries == 0 || entries > static_cast<Py_ssize_t>(session.max_batch)) return 0;
  const auto count = static_cast<std::uint32_t>(entries);
  return session.stream->has_room(count) ? count : 0;
}

}  // namespace

std::unique_ptr<Call> Call::transfer(const Session& session, CallKind kind, nb::handle keys,
                                     nb::handle blocks, std::uint64_t dialog, bool told) {
  nb::tuple copied = nb::steal<nb::tuple>(PySequence_Tuple(blocks.ptr()));
  if (!copied.is_valid()) throw nb::python_error();
  const std::uint32_t count = fitting(session, static_cast<Py_ssize_t>(copied.size()));
  if (count == 0) return nullptr;
  const FrameHeader header = header_of(session, kind, count, dialog);
  // A PUT of more than the gateway takes is the reference client's to refuse; a GET may have more room.
  const std::uint32_t most = kind == CallKind::put ? session.max_value : ~std::uint32_t{0};
  auto frame = session.codec->transfer(header, keys, copied, session.lease, most);
  if (!frame) return nullptr;
  auto exchange = session.stream->begin(header.request_id, count, std::move(*frame), told);
  if (exchange == nullptr) {
    session.codec->release(copied);
    return nullptr;
  }
  return std::unique_ptr<Call>(new Call(session, kind, std::move(copied), std::move(exchange)));
}

std::unique_ptr<Call> Call::keyed(const Session& session, CallKind kind, nb::handle keys,
                                  std::uint64_t dialog, bool told) {
  const std::uint32_t count = fitting(session, PySequence_Size(keys.ptr()));
  if (count == 0) return nullptr;
  const FrameHeader header = header_of(session, kind, count, dialog);
  auto exchange = session.stream->begin(header.request_id, count, session.codec->keyed(header, keys), told);
  if (exchange == nullptr) return nullptr;
  return std::unique_ptr<Call>(new Call(session, kind, nb::tuple(), std::move(exchange)));
}

std::unique_ptr<Call> Call::give_back(const Session& session, nb::handle lease, const nb::bytes& offsets,
                                      bool told, bool with_next) {
  if (!lease.is(session.lease) || offsets.size() % kOffsetBytes != 0) return nullptr;
  const std::uint32_t count = fitting(session, static_cast<Py_ssize_t>(offsets.size() / kOffsetBytes));
  if (count == 0) return nullptr;
  const FrameHeader header = header_of(session, CallKind::give_back, count, 0);
  std::vector<std::byte> frame(kHeaderBytes + offsets.size());
  std::memcpy(frame.data() + kHeaderBytes, offsets.data(), offsets.size());
  encode_header(header, offsets.size(), frame);
  const auto when = with_next ? Stream::Send::with_next : Stream::Send::now;
  auto exchange = session.stream->begin(header.request_id, count, std::move(frame), told, when);
  if (exchange == nullptr) return nullptr;
  return std::unique_ptr<Call>(new Call(session, CallKind::give_back, nb::tuple(), std::move(exchange)));
}

nb::object Call::result(double seconds) {
  const TimePoint end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  Waited waited = Waited::timed_out;
  do {
    const TimePoint slice = std::min(end, Clock::now() + kSignalPatience);
    {
      const nb::gil_scoped_release unlocked;
      waited = stream_->wait(exchange_, slice);
    }
    // Also where the reply came: what a handler raises after the result was given would lose it.
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  } while (waited == Waited::timed_out && Clock::now() < end);
  if (waited != Waited::replied) return nb::none();
  nb::object made = decode();
  if (!made.is_valid()) return nb::none();
  codec_->release(blocks_);
  answered_ = true;
  return made;
}

nb::object Call::decode() const {
  const Frame& reply = *exchange_->reply;
  if (reply.header.opcode != (opcode_of(kind_) | kReply)) return {};
  switch (kind_) {
    case CallKind::put:
      return codec_->put_result(reply, exchange_->count);
    case CallKind::get:
      return codec_->get_result(reply, blocks_);
    case CallKind::exists:
      return Codec::exists_result(reply, exchange_->count);
    case CallKind::prefix:
      return Codec::prefix_result(reply, exchange_->count);
    case CallKind::borrow:
      return Codec::borrow_result(reply, exchange_->count, cache_, lease_);
    case CallKind::give_back:
      return Codec::return_result(reply, exchange_->count);
  }
  return {};
}

void Call::disown() {
  stream_->disown(exchange_);
}

}  // namespace akv::client
