#include "nvme/command.hpp"

#include <algorithm>

#include "nvme/identify.hpp"

namespace akv::nvme {
namespace {

Sqe admin(AdminOpcode opcode) {
  Sqe sqe;
  sqe.opcode = static_cast<std::uint8_t>(opcode);
  return sqe;
}

Sqe set_feature(Feature feature, std::uint32_t value) {
  auto sqe = admin(AdminOpcode::set_features);
  sqe.cdw10 = static_cast<std::uint32_t>(feature);
  sqe.cdw11 = value;
  sqe.sgl = transport_sgl(0);
  return sqe;
}

}  // namespace

Sqe make_identify(std::uint8_t cns, std::uint32_t nsid, std::uint8_t csi) {
  auto sqe = admin(AdminOpcode::identify);
  sqe.nsid = nsid;
  sqe.cdw10 = cns;
  sqe.cdw11 = static_cast<std::uint32_t>(csi) << 24U;
  sqe.sgl = transport_sgl(kIdentifyBytes);
  return sqe;
}

Sqe make_set_queues(std::uint16_t queues) {
  const std::uint32_t zero_based = std::max<std::uint32_t>(queues, 1) - 1;
  return set_feature(Feature::number_of_queues, zero_based | (zero_based << 16U));
}

Sqe make_keep_alive() {
  auto sqe = admin(AdminOpcode::keep_alive);
  sqe.sgl = transport_sgl(0);
  return sqe;
}

Sqe make_async_event_request() {
  auto sqe = admin(AdminOpcode::async_event_request);
  sqe.sgl = transport_sgl(0);
  return sqe;
}

Sqe make_set_async_events(std::uint32_t events) {
  return set_feature(Feature::async_event_configuration, events);
}

Sqe make_get_log_page(std::uint8_t page, std::uint32_t bytes) {
  auto sqe = admin(AdminOpcode::get_log_page);
  sqe.nsid = kBroadcastNsid;
  const std::uint32_t dwords = bytes / 4 - 1;  // 0's based
  sqe.cdw10 = page | (dwords << 16U);
  sqe.cdw11 = dwords >> 16U;
  sqe.sgl = transport_sgl(bytes);
  return sqe;
}

Sqe make_abort(std::uint16_t sqid, std::uint16_t cid) {
  auto sqe = admin(AdminOpcode::abort);
  sqe.cdw10 = sqid | (static_cast<std::uint32_t>(cid) << 16U);
  sqe.sgl = transport_sgl(0);
  return sqe;
}

std::uint16_t granted_queues(std::uint32_t dw0) {
  const std::uint32_t zero_based = std::min(dw0 & 0xFFFFU, dw0 >> 16U);
  return static_cast<std::uint16_t>(std::min<std::uint32_t>(zero_based + 1, 0xFFFF));
}

}  // namespace akv::nvme
