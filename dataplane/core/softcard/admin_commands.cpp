// The admin command set (NVMe Base 2.0, 5), as far as a card needs it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "nvme/identify.hpp"
#include "softcard/commands.hpp"
#include "softcard/connection.hpp"
#include "softcard/controller.hpp"
#include "softcard/target.hpp"

namespace akv::softcard {
namespace {

using nvme::AdminOpcode;
using nvme::Feature;

constexpr std::uint32_t kMaxLogBytes = 4096;

void refuse(Connection& connection, const Request& request, nvme::Status status) {
  connection.respond(request.sqe.cid, nvme::dnr(status));
}

// 5.27.1.5: both counts are 0's based; the answer repeats what is granted.
void set_queue_count(Connection& connection, const Request& request) {
  const auto submission = request.sqe.cdw11 & 0xFFFFU;
  const auto completion = request.sqe.cdw11 >> 16U;
  if (submission == 0xFFFF || completion == 0xFFFF) return refuse(connection, request, nvme::kInvalidField);
  const std::uint32_t granted =
      connection.controller()->grant_queues(std::min(submission, completion) + 1) - 1U;
  connection.respond(request.sqe.cid, nvme::kSuccess, granted | (granted << 16U));
}

void set_features(Connection& connection, const Request& request) {
  const auto& sqe = request.sqe;
  auto& controller = *connection.controller();
  if ((sqe.cdw10 & 0x80000000U) != 0) return refuse(connection, request, nvme::kFeatureNotSaveable);
  switch (static_cast<Feature>(sqe.cdw10 & 0xFFU)) {
    case Feature::number_of_queues:
      return set_queue_count(connection, request);
    case Feature::async_event_configuration:
      controller.async_event_config = sqe.cdw11;
      return connection.respond(sqe.cid, nvme::kSuccess);
    case Feature::keep_alive_timer:
      controller.set_keep_alive(sqe.cdw11, connection.target().reactor().now());
      return connection.respond(sqe.cid, nvme::kSuccess);
    case Feature::io_command_set_profile:
      // There is one combination (CNS 1Ch), at index 0.
      if ((sqe.cdw11 & 0x1FFU) != 0)
        return refuse(connection, request, nvme::kIoCommandSetCombinationRejected);
      return connection.respond(sqe.cid, nvme::kSuccess);
  }
  refuse(connection, request, nvme::kInvalidField);
}

void get_features(Connection& connection, const Request& request) {
  const auto& sqe = request.sqe;
  const auto& controller = *connection.controller();
  const std::uint32_t granted = controller.granted_queues() - 1U;
  switch (static_cast<Feature>(sqe.cdw10 & 0xFFU)) {
    case Feature::number_of_queues:
      return connection.respond(sqe.cid, nvme::kSuccess, granted | (granted << 16U));
    case Feature::async_event_configuration:
      return connection.respond(sqe.cid, nvme::kSuccess, controller.async_event_config);
    case Feature::keep_alive_timer:
      return connection.respond(sqe.cid, nvme::kSuccess, controller.kato_ms());
    case Feature::io_command_set_profile:
      return connection.respond(sqe.cid, nvme::kSuccess, 0);
  }
  refuse(connection, request, nvme::kInvalidField);
}

// 5.1: DW0 bit 0 says that the command was not aborted. Only what waits can be: held asynchronous event
// requests and stores that were not asked for their data yet.
void abort_command(Connection& connection, const Request& request) {
  const auto sqid = static_cast<std::uint16_t>(request.sqe.cdw10);
  const auto cid = static_cast<std::uint16_t>(request.sqe.cdw10 >> 16U);
  auto& controller = *connection.controller();
  auto* const queue = controller.queue(sqid);
  const bool aborted =
      queue != nullptr && (sqid == 0 ? controller.drop_async_event(cid) : queue->abort_waiting_store(cid));
  if (aborted) queue->respond(cid, nvme::kAbortRequested);
  if (aborted && queue != &connection) queue->flush();
  connection.respond(request.sqe.cid, nvme::kSuccess, aborted ? 0 : 1);
}

void keep_alive(Connection& connection, const Request& request) {
  auto& controller = *connection.controller();
  if (controller.kato_ms() == 0) return refuse(connection, request, nvme::kKeepAliveTimeoutInvalid);
  controller.alive(connection.target().reactor().now());
  connection.respond(request.sqe.cid, nvme::kSuccess);
}

// 5.16: the mandatory pages (error information, SMART, firmware slots). A software card has nothing to tell
// in the first, and its media is always well.
void get_log_page(Connection& connection, const Request& request) {
  const auto& sqe = request.sqe;
  const auto page = sqe.cdw10 & 0xFFU;
  const std::uint64_t dwords = (std::uint64_t{sqe.cdw11 & 0xFFFFU} << 16U | sqe.cdw10 >> 16U) + 1;
  if (page < 1 || page > 3) return refuse(connection, request, nvme::kInvalidLogPage);
  if (dwords * 4 > kMaxLogBytes || sqe.cdw12 != 0 || sqe.cdw13 != 0) {
    return refuse(connection, request, nvme::kInvalidField);
  }
  const auto bytes = static_cast<std::size_t>(dwords * 4);
  if (sqe.sgl.identifier != nvme::kSglTransport || sqe.sgl.length < bytes) {
    return refuse(connection, request, nvme::kDataSglLengthInvalid);
  }
  auto data = allocate_bytes(kMaxLogBytes);
  std::memset(data.get(), 0, kMaxLogBytes);
  if (page == 2) {
    data[3] = std::byte{100};  // available spare, percent
    data[4] = std::byte{10};   // its threshold
  }
  if (page == 3) data[0] = std::byte{1};  // slot 1 is active
  const std::span<const std::byte> view(data.get(), bytes);
  connection.respond_data(sqe.cid, {.hold = std::move(data), .bytes = view});
}

}  // namespace

void execute_admin(Connection& connection, const Request& request) {
  const auto& sqe = request.sqe;
  ++connection.target().counters().admin;
  if ((sqe.flags & nvme::kFlagPsdtMask) != nvme::kFlagSgl)
    return refuse(connection, request, nvme::kInvalidField);
  if (sqe.opcode == nvme::kFabricsOpcode) return execute_fabrics(connection, request);
  if (!connection.controller()->csts().ready())
    return refuse(connection, request, nvme::kCommandSequenceError);
  switch (static_cast<AdminOpcode>(sqe.opcode)) {
    case AdminOpcode::identify:
      return execute_identify(connection, request);
    case AdminOpcode::set_features:
      return set_features(connection, request);
    case AdminOpcode::get_features:
      return get_features(connection, request);
    case AdminOpcode::abort:
      return abort_command(connection, request);
    case AdminOpcode::async_event_request:
      if (!connection.controller()->hold_async_event(sqe.cid)) {
        return refuse(connection, request, nvme::kAsyncEventLimitExceeded);
      }
      return;
    case AdminOpcode::keep_alive:
      return keep_alive(connection, request);
    case AdminOpcode::get_log_page:
      return get_log_page(connection, request);
  }
  refuse(connection, request, nvme::kInvalidOpcode);
}

}  // namespace akv::softcard
