#include "nvme/connect.hpp"

#include <algorithm>
#include <cstring>

namespace akv::nvme {
namespace {

Sqe fabrics(FabricsType type) {
  Sqe sqe;
  sqe.opcode = kFabricsOpcode;
  sqe.nsid = static_cast<std::uint32_t>(type);
  return sqe;
}

}  // namespace

Sqe make_connect(const ConnectCommand& command) {
  auto sqe = fabrics(FabricsType::connect);
  sqe.sgl = in_capsule_sgl(sizeof(ConnectData));
  sqe.cdw10 = command.recfmt | (static_cast<std::uint32_t>(command.qid) << 16U);
  sqe.cdw11 = command.sqsize | (static_cast<std::uint32_t>(command.cattr) << 16U);
  sqe.cdw12 = command.kato_ms;
  return sqe;
}

ConnectCommand parse_connect(const Sqe& sqe) {
  return {.recfmt = static_cast<std::uint16_t>(sqe.cdw10),
          .qid = static_cast<std::uint16_t>(sqe.cdw10 >> 16U),
          .sqsize = static_cast<std::uint16_t>(sqe.cdw11),
          .cattr = static_cast<std::uint8_t>(sqe.cdw11 >> 16U),
          .kato_ms = sqe.cdw12};
}

ConnectResult parse_connect_result(std::uint32_t dw0) {
  return {.cntlid = static_cast<std::uint16_t>(dw0), .authentication = (dw0 >> 16U) != 0};
}

bool set_nqn(char (&field)[256], std::string_view nqn) {
  if (nqn.size() > kNqnMaxBytes) return false;
  std::memset(field, 0, sizeof field);
  std::memcpy(field, nqn.data(), nqn.size());
  return true;
}

std::string_view get_nqn(const char (&field)[256]) {
  const std::string_view whole(field, sizeof field);
  const auto end = whole.find('\0');
  if (end > kNqnMaxBytes) return {};  // npos, when nothing ends it, is larger too
  return whole.substr(0, end);
}

Sqe make_property_get(Property property) {
  auto sqe = fabrics(FabricsType::property_get);
  sqe.cdw10 = property == Property::cap ? 1 : 0;
  sqe.cdw11 = static_cast<std::uint32_t>(property);
  return sqe;
}

Sqe make_property_set(Property property, std::uint64_t value) {
  auto sqe = fabrics(FabricsType::property_set);
  sqe.cdw10 = property == Property::cap ? 1 : 0;
  sqe.cdw11 = static_cast<std::uint32_t>(property);
  sqe.cdw12 = static_cast<std::uint32_t>(value);
  sqe.cdw13 = static_cast<std::uint32_t>(value >> 32U);
  return sqe;
}

PropertyCommand parse_property(const Sqe& sqe) {
  return {.offset = sqe.cdw11,
          .value = (static_cast<std::uint64_t>(sqe.cdw13) << 32U) | sqe.cdw12,
          .eight_bytes = (sqe.cdw10 & 7U) == 1};
}

}  // namespace akv::nvme
