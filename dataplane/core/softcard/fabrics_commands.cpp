// Fabrics commands (NVMe Base 2.0, 6): Connect, Property Get and Set.
#include <optional>

#include "nvme/connect.hpp"
#include "softcard/commands.hpp"
#include "softcard/connection.hpp"
#include "softcard/controller.hpp"
#include "softcard/target.hpp"

namespace akv::softcard {
namespace {

using nvme::FabricsType;
using nvme::Status;

struct Refusal {
  Status status;
  std::uint32_t result{0};
};

Refusal bad_data(std::size_t offset) {
  return {nvme::dnr(nvme::kConnectInvalidParameters), nvme::connect_bad_data(offset)};
}

Refusal bad_command(std::size_t offset) {
  return {nvme::dnr(nvme::kConnectInvalidParameters), nvme::connect_bad_command(offset)};
}

FabricsType type_of(const nvme::Sqe& sqe) {
  return static_cast<FabricsType>(sqe.nsid & 0xFFU);
}

// What the admin and the I/O queue's Connect have in common.
std::optional<Refusal> check_connect(const CardConfig& config, const nvme::ConnectCommand& command,
                                     const nvme::ConnectData& data) {
  if (command.recfmt != 0) return Refusal{nvme::dnr(nvme::kConnectIncompatibleFormat)};
  if (nvme::get_nqn(data.subnqn) != config.nqn) return bad_data(offsetof(nvme::ConnectData, subnqn));
  if (nvme::get_nqn(data.hostnqn).empty()) return bad_data(offsetof(nvme::ConnectData, hostnqn));
  if (command.sqsize == 0 || command.sqsize >= kMaxQueueEntries)
    return bad_command(nvme::kConnectSqsizeOffset);
  return std::nullopt;
}

std::optional<Refusal> connect_admin(Connection& connection, const nvme::ConnectCommand& command,
                                     const nvme::ConnectData& data, bool sq_flow_control) {
  if (data.cntlid != nvme::kDynamicController) return bad_data(offsetof(nvme::ConnectData, cntlid));
  auto* const controller = connection.target().create_controller(data, connection);
  if (controller == nullptr) return Refusal{nvme::kConnectControllerBusy};
  controller->set_keep_alive(command.kato_ms, connection.target().reactor().now());
  connection.attach(*controller, 0, static_cast<std::uint16_t>(command.sqsize + 1), sq_flow_control);
  return std::nullopt;
}

std::optional<Refusal> connect_io(Connection& connection, const nvme::ConnectCommand& command,
                                  const nvme::ConnectData& data, bool sq_flow_control) {
  auto* const controller = connection.target().find_controller(data.cntlid);
  if (controller == nullptr) return bad_data(offsetof(nvme::ConnectData, cntlid));
  if (!controller->same_host(data)) return bad_data(offsetof(nvme::ConnectData, hostnqn));
  if (!controller->csts().ready()) return Refusal{nvme::dnr(nvme::kCommandSequenceError)};
  if (command.qid > controller->granted_queues()) return bad_command(nvme::kConnectQidOffset);
  if (controller->has_queue(command.qid)) return Refusal{nvme::dnr(nvme::kCommandSequenceError)};
  controller->add_queue(command.qid, connection);
  connection.attach(*controller, command.qid, static_cast<std::uint16_t>(command.sqsize + 1),
                    sq_flow_control);
  return std::nullopt;
}

void connect(Connection& connection, const Request& request) {
  const auto& sqe = request.sqe;
  const auto fail = [&](const Refusal& refusal) {
    connection.respond(sqe.cid, refusal.status, refusal.result);
  };
  if (sqe.sgl.identifier != nvme::kSglInCapsule) return fail({nvme::dnr(nvme::kSglTypeInvalid)});
  if (sqe.sgl.length != sizeof(nvme::ConnectData) || request.view().size() != sizeof(nvme::ConnectData)) {
    return fail({nvme::dnr(nvme::kDataSglLengthInvalid)});
  }
  const auto command = nvme::parse_connect(sqe);
  const auto data = nvme::read_wire<nvme::ConnectData>(request.view());
  const bool flow_control = (command.cattr & nvme::kConnectDisableSqFlow) == 0;
  auto refusal = check_connect(connection.target().config(), command, data);
  if (!refusal) {
    refusal = command.qid == 0 ? connect_admin(connection, command, data, flow_control)
                               : connect_io(connection, command, data, flow_control);
  }
  if (refusal) return fail(*refusal);
  connection.respond(sqe.cid, nvme::kSuccess, connection.controller()->cntlid());
}

std::optional<std::uint64_t> read_property(const Controller& controller,
                                           const nvme::PropertyCommand& command) {
  const auto property = static_cast<nvme::Property>(command.offset);
  if (command.eight_bytes != (property == nvme::Property::cap)) return std::nullopt;
  switch (property) {
    case nvme::Property::cap:
      return controller.cap().raw;
    case nvme::Property::vs:
      return nvme::kVersion20;
    case nvme::Property::cc:
      return controller.cc().raw;
    case nvme::Property::csts:
      return controller.csts().raw;
    case nvme::Property::nssr:
      break;
  }
  return std::nullopt;
}

void property_get(Connection& connection, const Request& request) {
  const auto value = read_property(*connection.controller(), nvme::parse_property(request.sqe));
  if (!value) return connection.respond(request.sqe.cid, nvme::dnr(nvme::kInvalidField));
  connection.respond(request.sqe.cid, nvme::kSuccess, *value);
}

void property_set(Connection& connection, const Request& request) {
  const auto command = nvme::parse_property(request.sqe);
  if (command.eight_bytes || command.offset != static_cast<std::uint32_t>(nvme::Property::cc)) {
    return connection.respond(request.sqe.cid, nvme::dnr(nvme::kInvalidField));
  }
  auto& controller = *connection.controller();
  const auto change = controller.write_cc(static_cast<std::uint32_t>(command.value));
  if (change == Controller::CcChange::reset)
    connection.target().end_io_queues(controller, "controller reset");
  connection.respond(request.sqe.cid, nvme::kSuccess);
}

}  // namespace

void execute_unconnected(Connection& connection, const Request& request) {
  const auto& sqe = request.sqe;
  if (sqe.opcode != nvme::kFabricsOpcode || type_of(sqe) != FabricsType::connect) {
    return connection.respond(sqe.cid, nvme::dnr(nvme::kCommandSequenceError));
  }
  connect(connection, request);
}

void execute_fabrics(Connection& connection, const Request& request) {
  const auto cid = request.sqe.cid;
  const auto type = type_of(request.sqe);
  if (type == FabricsType::connect) return connection.respond(cid, nvme::dnr(nvme::kCommandSequenceError));
  if (connection.qid() != 0) return connection.respond(cid, nvme::dnr(nvme::kInvalidField));
  if (type == FabricsType::property_get) return property_get(connection, request);
  if (type == FabricsType::property_set) return property_set(connection, request);
  connection.respond(cid, nvme::dnr(nvme::kInvalidField));
}

}  // namespace akv::softcard
