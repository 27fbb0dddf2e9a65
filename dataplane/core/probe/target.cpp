#include "probe/target.hpp"

#include <algorithm>
#include <array>

#include "nvme/connect.hpp"
#include "nvme/identify.hpp"

namespace akv::probe {
namespace {

constexpr std::uint32_t kAdminDepth = 31;
constexpr std::uint32_t kKeepAliveMs = 60'000;
constexpr int kReadyTries = 2000;

fabric::TcpQueuePairConfig transport(const TargetConfig& config, std::uint32_t depth,
                                     std::uint32_t in_capsule) {
  return {.address = config.address,
          .connect_timeout = std::chrono::seconds(10),
          .depth = depth,
          .in_capsule_bytes = in_capsule,
          .header_digest = config.digests,
          .data_digest = config.digests};
}

std::uint8_t cns(nvme::Cns value) {
  return static_cast<std::uint8_t>(value);
}

}  // namespace

Target::Target(Reactor& reactor, const TargetConfig& config)
    : admin_(reactor, transport(config, kAdminDepth, 0)), config_(config) {
  connect(admin_, 0, kAdminDepth);
  enable();
  identify_controller();
  find_namespace();
  const auto granted = admin_.call({.sqe = nvme::make_set_queues(1)}, "Set Features (Number of Queues)");
  if (nvme::granted_queues(granted.cqe.dw0) == 0) throw ProbeError("the controller grants no I/O queue");
  // A queue of n + 1 entries takes n commands, and MQES is 0's based.
  if (config.depth > mqes_) {
    throw ProbeError("the controller takes " + std::to_string(mqes_) + " commands on a queue, not " +
                     std::to_string(config.depth));
  }
  queue_ = std::make_unique<Connection>(reactor, transport(config, config.depth, facts_.in_capsule_bytes));
  connect(*queue_, 1, static_cast<std::uint16_t>(config.depth));
}

void Target::keep_alive() {
  static_cast<void>(admin_.call({.sqe = nvme::make_keep_alive()}, "Keep Alive"));
}

void Target::connect(Connection& connection, std::uint16_t qid, std::uint16_t sqsize) {
  nvme::ConnectData data;
  data.hostid = {0x61, 0x6B, 0x76, 0x2D, 0x70, 0x72, 0x6F, 0x62, 0x65, 1};
  data.cntlid = cntlid_;
  if (!nvme::set_nqn(data.subnqn, config_.nqn) || !nvme::set_nqn(data.hostnqn, config_.host_nqn)) {
    throw ProbeError("a NQN has at most 223 bytes");
  }
  const iovec vector{&data, sizeof data};
  const auto response = connection.call(
      {.sqe = nvme::make_connect({.qid = qid, .sqsize = sqsize, .kato_ms = qid == 0 ? kKeepAliveMs : 0}),
       .direction = fabric::Direction::to_target,
       .data = std::span(&vector, 1),
       .must_be_in_capsule = true},
      "Connect to " + config_.nqn);
  const auto result = nvme::parse_connect_result(response.cqe.dw0);
  if (result.authentication) throw ProbeError("the subsystem demands authentication");
  cntlid_ = result.cntlid;
}

void Target::enable() {
  const nvme::Cap cap{
      admin_.call({.sqe = nvme::make_property_get(nvme::Property::cap)}, "reading CAP").cqe.result64()};
  mqes_ = cap.mqes();
  page_bytes_ = cap.min_page_bytes();
  command_sets_ = cap.io_command_sets();
  const std::uint32_t sets = command_sets_ ? nvme::Cc::kCssAllCommandSets : nvme::Cc::kCssNvm;
  static_cast<void>(admin_.call(
      {.sqe = nvme::make_property_set(nvme::Property::cc, nvme::Cc::kEnable | sets | nvme::Cc::kEntrySizes)},
      "enabling the controller"));
  for (int i = 0; i < kReadyTries; ++i) {
    const nvme::Csts status{
        admin_.call({.sqe = nvme::make_property_get(nvme::Property::csts)}, "reading CSTS").cqe.dw0};
    if (status.fatal()) throw ProbeError("the controller reports a fatal status");
    if (status.ready()) return;
  }
  throw ProbeError("the controller does not become ready");
}

template <nvme::WireStruct T>
T Target::identify(std::uint8_t structure, std::uint32_t nsid, std::uint8_t csi, const std::string& what) {
  static_assert(sizeof(T) == nvme::kIdentifyBytes);
  T page{};
  const iovec vector{&page, sizeof page};
  const auto response = admin_.call({.sqe = nvme::make_identify(structure, nsid, csi),
                                     .direction = fabric::Direction::from_target,
                                     .data = std::span(&vector, 1)},
                                    what);
  if (response.received != sizeof page) throw ProbeError(what + " was answered with too few bytes");
  return page;
}

void Target::identify_controller() {
  const auto id = identify<nvme::IdentifyController>(cns(nvme::Cns::controller), 0, 0, "Identify Controller");
  facts_.model = std::string(nvme::trimmed(id.mn));
  facts_.in_capsule_bytes = id.icdoff == 0 ? nvme::in_capsule_bytes(id) : 0;
  constexpr unsigned kNoLimit = 20;
  const unsigned shift = id.mdts == 0 ? kNoLimit : std::min<unsigned>(id.mdts, kNoLimit);
  facts_.max_io_bytes = std::uint64_t{page_bytes_} << shift;
}

void Target::find_namespace() {
  if (command_sets_) {
    const auto list = identify<nvme::NamespaceList>(cns(nvme::Cns::active_namespaces_command_set), 0,
                                                    nvme::kCsiKeyValue, "listing KV namespaces");
    if (list.nsid[0] != 0 && take_key_value(list.nsid[0])) return;
  }
  const auto list =
      identify<nvme::NamespaceList>(cns(nvme::Cns::active_namespaces), 0, 0, "listing namespaces");
  if (list.nsid[0] == 0) throw ProbeError("the subsystem has no namespace");
  take_block(list.nsid[0]);
}

bool Target::take_key_value(std::uint32_t nsid) {
  const auto id = identify<nvme::IdentifyKvNamespace>(cns(nvme::Cns::namespace_command_set), nsid,
                                                      nvme::kCsiKeyValue, "Identify Namespace (KV)");
  if (id.format().value_max_bytes == 0) return false;
  facts_.kind = Kind::key_value;
  facts_.nsid = nsid;
  facts_.max_io_bytes = std::min<std::uint64_t>(facts_.max_io_bytes, id.format().value_max_bytes);
  return true;
}

void Target::take_block(std::uint32_t nsid) {
  const auto id =
      identify<nvme::IdentifyNamespace>(cns(nvme::Cns::namespace_nvm), nsid, 0, "Identify Namespace");
  const unsigned shift = id.lbaf[id.flbas & 0xFU] >> 16U & 0xFFU;
  if (shift < 9 || shift > 16 || id.nsze == 0) throw ProbeError("the namespace has no usable block format");
  facts_.kind = Kind::block;
  facts_.nsid = nsid;
  facts_.block_bytes = 1U << shift;
  facts_.capacity = id.nsze << shift;
}

}  // namespace akv::probe
