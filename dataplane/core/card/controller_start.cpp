#include "card/controller_start.hpp"

#include <utility>

#include "nvme/status.hpp"

namespace akv::card {

nvme::ConnectData make_connect_data(const Identity& identity, std::uint16_t cntlid) {
  nvme::ConnectData data;
  data.hostid = identity.host_id;
  data.cntlid = cntlid;
  // Both lengths were checked where they came in.
  [[maybe_unused]] const bool fits =
      nvme::set_nqn(data.subnqn, identity.subsystem_nqn) && nvme::set_nqn(data.hostnqn, identity.host_nqn);
  return data;
}

ControllerStart::ControllerStart(const Identity& identity, std::uint32_t keep_alive_ms, CommandSets wanted)
    : subsystem_nqn_(identity.subsystem_nqn),
      keep_alive_ms_(keep_alive_ms),
      wanted_(wanted),
      connect_data_(make_connect_data(identity, nvme::kDynamicController)) {}

fabric::Command ControllerStart::command() {
  fabric::Command command;
  switch (step_) {
    case Step::connect:
      command.sqe = nvme::make_connect({.qid = 0, .sqsize = kAdminDepth, .kato_ms = keep_alive_ms_});
      command.direction = fabric::Direction::to_target;
      command.data = vector_;
      command.must_be_in_capsule = true;
      break;
    case Step::capabilities:
      command.sqe = nvme::make_property_get(nvme::Property::cap);
      break;
    case Step::enable:
      command.sqe = nvme::make_property_set(
          nvme::Property::cc,
          nvme::Cc::kEnable | nvme::Cc::kEntrySizes |
              (capabilities_.io_command_sets() ? nvme::Cc::kCssAllCommandSets : nvme::Cc::kCssNvm));
      break;
    case Step::ready:
      command.sqe = nvme::make_property_get(nvme::Property::csts);
      break;
  }
  return command;
}

NextStep ControllerStart::on_response(const fabric::Response& response) {
  const nvme::Status status = response.cqe.status();
  if (status != nvme::kSuccess) return on_status(status);
  switch (step_) {
    case Step::connect:
      return on_connect(response.cqe);
    case Step::capabilities:
      return on_capabilities(response.cqe);
    case Step::enable:
      return go(Step::ready);
    case Step::ready:
      break;
  }
  return on_ready(response.cqe);
}

NextStep ControllerStart::on_status(nvme::Status status) {
  const std::string told = nvme::describe_status(status);
  if (step_ == Step::connect) {
    return fail(Trouble::refused, "Connect to " + subsystem_nqn_ + " was refused: " + told);
  }
  return fail(Trouble::refused, "the controller can't be brought up: " + told);
}

NextStep ControllerStart::on_connect(const nvme::Cqe& cqe) {
  const auto result = nvme::parse_connect_result(cqe.dw0);
  if (result.authentication) {
    return fail(Trouble::refused, "the subsystem demands authentication, which is not configured");
  }
  cntlid_ = result.cntlid;
  return go(Step::capabilities);
}

NextStep ControllerStart::on_capabilities(const nvme::Cqe& cqe) {
  capabilities_ = nvme::Cap{cqe.result64()};
  if (wanted_ == CommandSets::all && !capabilities_.io_command_sets()) {
    return fail(Trouble::no_kv_namespace, "the controller has no I/O command sets beside NVM (CAP.CSS)");
  }
  return go(Step::enable);
}

NextStep ControllerStart::on_ready(const nvme::Cqe& cqe) {
  const nvme::Csts status{cqe.dw0};
  if (status.fatal()) {
    return fail(Trouble::controller_fatal, "the controller reports a fatal status (CSTS.CFS)");
  }
  return status.ready() ? NextStep::done : NextStep::wait_and_send;
}

NextStep ControllerStart::go(Step step) noexcept {
  step_ = step;
  return NextStep::send;
}

NextStep ControllerStart::fail(Trouble trouble, std::string reason) {
  failure_ = trouble;
  reason_ = std::move(reason);
  return NextStep::failed;
}

}  // namespace akv::card
