// What comes from the host: PDUs, as far as the commands that they make up.
#include <utility>

#include "nvme/connect.hpp"
#include "softcard/commands.hpp"
#include "softcard/connection.hpp"
#include "softcard/target.hpp"

namespace akv::softcard {
namespace {

constexpr std::size_t kPfvOffset = 8;
constexpr std::size_t kHpdaOffset = 10;
constexpr std::size_t kDgstOffset = 11;
constexpr std::size_t kCccidOffset = 8;
constexpr std::size_t kTtagOffset = 10;
constexpr std::size_t kDataoOffset = 12;
constexpr std::size_t kDatalOffset = 16;

}  // namespace

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
  if (!has_use_for(header.data)) return rx_.skip_data(header.data, header.has_ddgst);
  request_.data = allocate_bytes(header.data);
  capsule_bytes_ = header.data;
  target_.budget().charge(capsule_bytes_);
  rx_.expect_data({request_.data.get(), header.data}, header.has_ddgst);
}

// Whether the command in request_, which may be anything, can do something with so many bytes of data. What
// has no use for them fails or ignores them; memory is not spent on them.
bool Connection::has_use_for(std::uint32_t capsule_data) const {
  if (controller_ != nullptr && qid_ != 0) return stores_capsule(target_, request_.sqe, capsule_data);
  return request_.sqe.opcode == nvme::kFabricsOpcode && capsule_data == sizeof(nvme::ConnectData);
}

// The capsule's data came in full, or won't.
void Connection::end_capsule() noexcept {
  if (const auto bytes = std::exchange(capsule_bytes_, 0); bytes > 0) target_.budget().give_back(bytes);
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
  end_capsule();
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

}  // namespace akv::softcard
