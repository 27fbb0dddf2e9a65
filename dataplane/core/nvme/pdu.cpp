#include "nvme/pdu.hpp"

#include <algorithm>

#include "base/bytes.hpp"
#include "base/crc32c.hpp"

namespace akv::nvme {
namespace {

constexpr std::size_t kTypeOffset = 0;
constexpr std::size_t kFlagsOffset = 1;
constexpr std::size_t kHlenOffset = 2;
constexpr std::size_t kPdoOffset = 3;
constexpr std::size_t kPlenOffset = 4;

// What the transport says about one type of PDU (TCP 1.0, 3.6.2).
struct TypeRule {
  PduType type;
  Role receiver;
  std::uint8_t hlen;
  std::uint8_t flags;  // allowed, digests apart
  bool digests;        // carries digests where they were agreed on
  bool data;           // may carry data
};

constexpr TypeRule kRules[] = {
    {PduType::ic_req, Role::controller, kIcPduBytes, 0, false, false},
    {PduType::ic_resp, Role::host, kIcPduBytes, 0, false, false},
    {PduType::h2c_term_req, Role::controller, sizeof(TermReq), 0, false, true},
    {PduType::c2h_term_req, Role::host, sizeof(TermReq), 0, false, true},
    {PduType::capsule_cmd, Role::controller, sizeof(CapsuleCmd), 0, true, true},
    {PduType::capsule_resp, Role::host, sizeof(CapsuleResp), 0, true, false},
    {PduType::h2c_data, Role::controller, sizeof(DataPdu), kPduLast, true, true},
    {PduType::c2h_data, Role::host, sizeof(DataPdu), kPduLast | kPduDataSuccess, true, true},
    {PduType::r2t, Role::host, sizeof(R2t), 0, true, false},
};

const TypeRule* find_rule(std::uint8_t type, Role receiver) {
  for (const auto& rule : kRules) {
    if (static_cast<std::uint8_t>(rule.type) == type && rule.receiver == receiver) return &rule;
  }
  return nullptr;
}

ParseResult need(std::size_t bytes) {
  return {.kind = ParseResult::Kind::need_more, .need = bytes};
}

ParseResult fail(FatalStatus status, std::size_t info) {
  return {.kind = ParseResult::Kind::error, .error = {status, static_cast<std::uint32_t>(info)}};
}

ParseResult bad_field(std::size_t offset) {
  return fail(FatalStatus::invalid_header_field, offset);
}

bool is_term_req(PduType type) {
  return type == PduType::h2c_term_req || type == PduType::c2h_term_req;
}

std::uint32_t data_limit(PduType type, const ReceiveRules& rules) {
  if (is_term_req(type)) return kTermDataMax;
  return type == PduType::capsule_cmd ? rules.max_capsule_data : rules.max_data;
}

// The digest flag that a PDU of this rule must carry under the agreed framing.
std::uint8_t expected_hdgst(const TypeRule& rule, const Framing& framing) {
  return rule.digests && framing.hdgst ? kPduHdgst : 0;
}

bool flags_valid(const CommonHeader& common, const TypeRule& rule, const Framing& framing) {
  const unsigned ddgst = rule.digests && rule.data && framing.ddgst ? kPduDdgst : 0U;
  const unsigned allowed = rule.flags | expected_hdgst(rule, framing) | ddgst;
  if ((common.flags & ~allowed) != 0) return false;
  if ((common.flags & kPduHdgst) != expected_hdgst(rule, framing)) return false;
  // SUCCESS without LAST has no meaning (3.6.2.9).
  return (common.flags & (kPduLast | kPduDataSuccess)) != kPduDataSuccess;
}

// Places of data and digest for a PDU that has data, or an error.
ParseResult place_data(const CommonHeader& common, const TypeRule& rule, const ReceiveRules& rules,
                       std::uint32_t header_bytes) {
  PduHeader header{.type = rule.type,
                   .flags = common.flags,
                   .hlen = common.hlen,
                   .prefix = header_bytes,
                   .plen = common.plen};
  const bool term = is_term_req(rule.type);
  if (!term) {
    header.prefix = common.pdo;
    if (common.pdo < header_bytes || common.pdo % rules.framing.alignment() != 0)
      return bad_field(kPdoOffset);
  }
  header.has_ddgst = !term && rules.framing.ddgst;
  if (header.has_ddgst && (common.flags & kPduDdgst) == 0) return bad_field(kFlagsOffset);
  const std::uint64_t around = std::uint64_t{header.prefix} + (header.has_ddgst ? kDigestBytes : 0);
  if (common.plen <= around) return bad_field(kPlenOffset);
  header.data = static_cast<std::uint32_t>(common.plen - around);
  if (header.data > data_limit(rule.type, rules)) {
    return rule.type == PduType::h2c_data || rule.type == PduType::c2h_data
               ? fail(FatalStatus::data_limit_exceeded, kPlenOffset)
               : bad_field(kPlenOffset);
  }
  return {.kind = ParseResult::Kind::header, .header = header};
}

ParseResult place(const CommonHeader& common, const TypeRule& rule, const ReceiveRules& rules) {
  const auto header_bytes =
      static_cast<std::uint32_t>(common.hlen + ((common.flags & kPduHdgst) != 0 ? kDigestBytes : 0));
  if (common.plen < header_bytes) return bad_field(kPlenOffset);
  if (common.plen != header_bytes) {
    if (!rule.data) return bad_field(kPlenOffset);
    return place_data(common, rule, rules, header_bytes);
  }
  if (rule.type == PduType::h2c_data || rule.type == PduType::c2h_data) return bad_field(kPlenOffset);
  // PDO is reserved without data; a DDGST flag would promise bytes that are not there.
  if ((common.flags & kPduDdgst) != 0) return bad_field(kFlagsOffset);
  return {.kind = ParseResult::Kind::header,
          .header = {.type = rule.type,
                     .flags = common.flags,
                     .hlen = common.hlen,
                     .prefix = header_bytes,
                     .plen = common.plen}};
}

}  // namespace

std::string_view to_string(FatalStatus status) noexcept {
  switch (status) {
    case FatalStatus::invalid_header_field:
      return "invalid PDU header field";
    case FatalStatus::sequence_error:
      return "PDU sequence error";
    case FatalStatus::header_digest:
      return "header digest error";
    case FatalStatus::data_out_of_range:
      return "data transfer out of range";
    case FatalStatus::data_limit_exceeded:
      return "data transfer limit exceeded";
    case FatalStatus::unsupported_parameter:
      return "unsupported parameter";
  }
  return "unknown fatal error";
}

ParseResult parse_pdu(std::span<const std::byte> bytes, const ReceiveRules& rules) {
  if (bytes.size() < sizeof(CommonHeader)) return need(sizeof(CommonHeader));
  const auto common = read_wire<CommonHeader>(bytes);
  const auto* rule = find_rule(common.type, rules.role);
  if (rule == nullptr) return bad_field(kTypeOffset);
  if (common.hlen != rule->hlen) return bad_field(kHlenOffset);
  if (!flags_valid(common, *rule, rules.framing)) return bad_field(kFlagsOffset);
  auto result = place(common, *rule, rules);
  if (result.kind != ParseResult::Kind::header) return result;
  if (bytes.size() < result.header.prefix) return need(result.header.prefix);
  if (result.header.flag(kPduHdgst)) {
    const auto received = load_le<std::uint32_t>(bytes.data() + common.hlen);
    if (received != header_digest(bytes.first(common.hlen)))
      return fail(FatalStatus::header_digest, received);
  }
  return result;
}

std::uint32_t frame_pdu(CommonHeader& header, std::uint32_t data, const Framing& framing) noexcept {
  std::uint32_t prefix = header.hlen;
  if (framing.hdgst) {
    header.flags |= kPduHdgst;
    prefix += static_cast<std::uint32_t>(kDigestBytes);
  }
  header.plen = prefix;
  if (data == 0) return prefix;
  const auto alignment = framing.alignment();
  prefix = (prefix + alignment - 1) / alignment * alignment;
  // PDO is reserved in termination requests, whose data follows the header at once.
  if (!is_term_req(static_cast<PduType>(header.type))) header.pdo = static_cast<std::uint8_t>(prefix);
  header.plen = prefix + data;
  if (framing.ddgst) {
    header.flags |= kPduDdgst;
    header.plen += static_cast<std::uint32_t>(kDigestBytes);
  }
  return prefix;
}

std::uint32_t header_digest(std::span<const std::byte> header) noexcept {
  return crc32c(header);
}

std::size_t finish_header(std::span<std::byte> to, std::size_t hlen, std::uint32_t prefix,
                          bool hdgst) noexcept {
  std::size_t end = hlen;
  if (hdgst) {
    store_le(to.data() + hlen, header_digest(to.first(hlen)));
    end += kDigestBytes;
  }
  const auto padding = to.subspan(end, prefix - end);
  std::fill(padding.begin(), padding.end(), std::byte{0});
  return prefix;
}

}  // namespace akv::nvme
