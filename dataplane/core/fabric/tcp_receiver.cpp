#include "fabric/tcp_receiver.hpp"

#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bytes.hpp"
#include "base/guarded_memory.hpp"
#include "nvme/data_digest.hpp"

namespace akv::fabric {
namespace {

constexpr int kReadsPerCall = 16;
// Of a payload at most so much is read at once, so that it is still in the CPU's cache for on_payload().
constexpr std::uint32_t kPayloadPiece = std::uint32_t{256} << 10U;
constexpr int kMaxMends = 64;  // as for the sender

// By where in the header the fault is.
Ending ending_of(const nvme::FatalError& error) noexcept {
  if (error.status == nvme::FatalStatus::header_digest) return Ending::wrong_digest;
  if (error.status == nvme::FatalStatus::data_limit_exceeded) return Ending::wrong_length;
  if (error.status != nvme::FatalStatus::invalid_header_field) return Ending::protocol;
  switch (error.info) {
    case offsetof(nvme::CommonHeader, hlen):
    case offsetof(nvme::CommonHeader, pdo):
    case offsetof(nvme::CommonHeader, plen):
    case offsetof(nvme::DataPdu, datal):
      return Ending::wrong_length;
    default:
      return Ending::protocol;
  }
}

Fault broken(const nvme::FatalError& error) {
  return {"the target broke the protocol: " + std::string(to_string(error.status)) + " (" +
              std::to_string(error.info) + ")",
          error, ending_of(error)};
}

Fault out_of_sequence(nvme::PduType type) {
  return {"the target sent out of sequence a PDU of type " + std::to_string(static_cast<unsigned>(type)),
          nvme::FatalError{nvme::FatalStatus::sequence_error}};
}

}  // namespace

TcpReceiver::TcpReceiver(ReceiverClient& client, std::uint8_t hpda) noexcept : client_(client) {
  rules_.role = nvme::Role::host;
  rules_.framing.pda = hpda;
  rules_.max_data = std::numeric_limits<std::uint32_t>::max();  // each command's own buffer is the bound
}

void TcpReceiver::use_digests(bool header, bool data) noexcept {
  rules_.framing.hdgst = header;
  rules_.framing.ddgst = data;
}

std::span<const std::byte> TcpReceiver::staged() const noexcept {
  return std::span(staging_).subspan(begin_, end_ - begin_);
}

std::span<const std::byte> TcpReceiver::offending_header() const noexcept {
  return staged().first(std::min(staged().size(), sizeof(nvme::R2t)));
}

void TcpReceiver::make_room() noexcept {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (kStaging - begin_ < kMaxHeader) {
    std::memmove(staging_.data(), staging_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
}

// Payload first, then room for its digest and the next headers, all in one system call.
std::size_t TcpReceiver::gather(std::span<iovec> out) noexcept {
  make_room();
  std::size_t count = 0;
  if (state_ == State::payload) {
    const std::uint32_t piece = std::min(remaining_, kPayloadPiece);
    count = target_.buffer->slice(target_.offset, piece, out.first(kMaxVectors));
    if (piece < remaining_) return count;
  }
  out[count++] = {staging_.data() + end_, kStaging - end_};
  return count;
}

std::optional<Fault> TcpReceiver::receive(int fd) {
  int mends = 0;
  for (int reads = 0; reads < kReadsPerCall && !stopped_; ++reads) {
    std::array<iovec, kMaxVectors + 1> vectors;
    const std::size_t count = gather(vectors);
    std::size_t room = 0;
    for (const iovec& vector : std::span(vectors).first(count))
      room += vector.iov_len;
    const ssize_t got = ::readv(fd, vectors.data(), static_cast<int>(count));
    if (got == 0) return Fault{"the target closed the connection", {}, Ending::closed};
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return std::nullopt;
      if (errno == EFAULT && ++mends <= kMaxMends) {
        touch_pages(std::span(vectors).first(count));
        --reads;
        continue;
      }
      return system_fault("receive", errno);
    }
    if (auto fault = take(static_cast<std::size_t>(got))) return fault;
    if (static_cast<std::size_t>(got) < room) return std::nullopt;  // the socket is empty for now
  }
  return std::nullopt;
}

std::optional<Fault> TcpReceiver::take(std::size_t bytes) {
  if (state_ == State::payload) {
    const auto direct = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, remaining_));
    payload_arrived(direct);
    bytes -= direct;
  }
  end_ += bytes;
  return parse();
}

// `bytes` of payload are in place at the target's offset.
void TcpReceiver::payload_arrived(std::uint32_t bytes) noexcept {
  if (rules_.framing.ddgst) {
    std::array<iovec, kMaxVectors> pieces;
    const std::size_t count = target_.buffer->slice(target_.offset, bytes, pieces);
    for (const iovec& piece : std::span(pieces).first(count)) {
      crc_.update({static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
    }
  }
  target_.offset += bytes;
  remaining_ -= bytes;
  if (bytes > 0) client_.on_payload(data_.cccid, target_.offset);
}

void TcpReceiver::copy_staged_payload() noexcept {
  const auto bytes = static_cast<std::uint32_t>(std::min<std::size_t>(staged().size(), remaining_));
  std::array<iovec, kMaxVectors> pieces;
  const std::size_t count = target_.buffer->slice(target_.offset, bytes, pieces);
  const std::byte* from = staged().data();
  for (const iovec& piece : std::span(pieces).first(count)) {
    std::memcpy(piece.iov_base, from, piece.iov_len);
    from += piece.iov_len;
  }
  payload_arrived(bytes);
  begin_ += bytes;
}

std::optional<Fault> TcpReceiver::parse() {
  bool starved = false;
  while (!stopped_ && !starved) {
    if (auto fault = step(starved)) return fault;
  }
  return std::nullopt;
}

std::optional<Fault> TcpReceiver::step(bool& starved) {
  if (state_ == State::header) return parse_header(starved);
  if (state_ == State::payload) {
    copy_staged_payload();
    starved = remaining_ > 0;
    if (!starved) state_ = State::data_digest;
    return std::nullopt;
  }
  starved = rules_.framing.ddgst && staged().size() < nvme::kDigestBytes;
  return starved ? std::nullopt : end_data();
}

std::optional<Fault> TcpReceiver::parse_header(bool& starved) {
  const nvme::ParseResult result = nvme::parse_pdu(staged(), rules_);
  if (result.kind == nvme::ParseResult::Kind::error) return broken(result.error);
  starved = result.kind == nvme::ParseResult::Kind::need_more;
  return starved ? std::nullopt : dispatch(result.header);
}

// Before the ICResp the place at fault can only be in our ICReq.
Fault TcpReceiver::ended_by(const nvme::TermReq& request) const {
  const auto status = static_cast<nvme::FatalStatus>(request.fes);
  std::string text = "the target ended the connection: " + std::string(to_string(status));
  if (!greeted_ && request.fei() == offsetof(nvme::IcReq, dgst)) {
    text += "; it takes no host with the header and data digests that were asked for";
  }
  return Fault{std::move(text), {}, Ending::terminated};
}

std::optional<Fault> TcpReceiver::dispatch(const nvme::PduHeader& header) {
  using nvme::PduType;
  if (header.type == PduType::c2h_term_req) {
    return ended_by(nvme::read_wire<nvme::TermReq>(staged()));
  }
  if ((header.type == PduType::ic_resp) == greeted_) return out_of_sequence(header.type);
  if (header.type == PduType::c2h_data) return begin_data(header);
  std::optional<Fault> fault;
  if (header.type == PduType::capsule_resp) {
    fault = client_.on_response(nvme::read_wire<nvme::CapsuleResp>(staged()).cqe);
  } else if (header.type == PduType::r2t) {
    fault = client_.on_r2t(nvme::read_wire<nvme::R2t>(staged()));
  } else {
    greeted_ = true;
    fault = client_.on_ic_resp(nvme::read_wire<nvme::IcResp>(staged()));
  }
  if (!fault) begin_ += header.prefix;
  return fault;
}

std::optional<Fault> TcpReceiver::begin_data(const nvme::PduHeader& header) {
  data_ = nvme::read_wire<nvme::DataPdu>(staged());
  if (data_.datal != header.data) {
    return broken({nvme::FatalStatus::invalid_header_field, offsetof(nvme::DataPdu, datal)});
  }
  if (auto fault = client_.on_c2h_data(data_, header.data, target_)) return fault;
  begin_ += header.prefix;
  remaining_ = header.data;
  crc_ = Crc32c();
  state_ = State::payload;
  return std::nullopt;
}

// A wrong digest says nothing against the bytes that follow, so it is the command's matter (TCP 3.3.1.1).
std::optional<Fault> TcpReceiver::end_data() {
  bool digest_holds = true;
  if (rules_.framing.ddgst) {
    const auto received = load_le<std::uint32_t>(staged().data());
    digest_holds = nvme::judge_data_digest(received, crc_, data_.datal) != nvme::DataDigest::wrong;
    begin_ += nvme::kDigestBytes;
  }
  state_ = State::header;
  target_ = {};
  return client_.on_c2h_data_end(data_, digest_holds);
}

}  // namespace akv::fabric
