// Identify (NVMe Base 2.0, 5.17): who the card is, and its one key-value namespace.
#include "nvme/identify.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.hpp"
#include "softcard/commands.hpp"
#include "softcard/connection.hpp"
#include "softcard/controller.hpp"
#include "softcard/target.hpp"

namespace akv::softcard {
namespace {

using nvme::Cns;

constexpr std::string_view kModel = "AKV software card";

template <nvme::WireStruct T>
void answer(Connection& connection, const Request& request, const T& structure) {
  static_assert(sizeof(T) == nvme::kIdentifyBytes);
  auto data = allocate_bytes(sizeof(T));
  nvme::write_wire({data.get(), sizeof(T)}, structure);
  const std::span<const std::byte> view(data.get(), sizeof(T));
  connection.respond_data(request.sqe.cid, {.hold = std::move(data), .bytes = view});
}

nvme::IdentifyController describe_controller(const Connection& connection) {
  const auto& target = connection.target();
  nvme::IdentifyController id;
  nvme::set_padded(id.sn, target.config().serial);
  nvme::set_padded(id.mn, kModel);
  nvme::set_padded(id.fr, AKV_VERSION);
  id.cmic = nvme::kCmicManyControllers;
  id.mdts = target.mdts();
  id.cntlid = connection.controller()->cntlid();
  id.ver = nvme::kVersion20;
  id.cntrltype = 1;
  id.acl = 3;
  id.aerl = Controller::kHeldAsyncEvents - 1;
  id.kas = Controller::kKeepAliveUnitMs / 100;
  id.sqes = 0x66;
  id.cqes = 0x44;
  id.maxcmd = kMaxQueueEntries;
  id.nn = kNamespaceId;
  id.mnan = kNamespaceId;
  id.sgls = nvme::kSglsSupported | nvme::kSglsInCapsuleOffset | nvme::kSglsTransport;
  std::copy(target.config().nqn.begin(), target.config().nqn.end(), id.subnqn);
  id.ioccsz = static_cast<std::uint32_t>((sizeof(nvme::Sqe) + target.config().in_capsule_bytes) / 16);
  id.iorcsz = sizeof(nvme::Cqe) / 16;
  id.msdbd = 1;
  return id;
}

// A key-value namespace has no blocks; initiators of the common kind (SPDK) take a namespace without a size
// for inactive, so its capacity is told in blocks of 512 bytes.
nvme::IdentifyNamespace describe_common(const Target& target) {
  constexpr std::uint32_t block_shift = 9;
  const auto stats = target.store().stats();
  nvme::IdentifyNamespace id;
  id.nsze = id.ncap = stats.capacity >> block_shift;
  id.nuse = std::min(id.nsze, stats.bytes >> block_shift);
  id.nmic = 1;
  id.lbaf[0] = block_shift << 16U;
  return id;
}

nvme::IdentifyKvNamespace describe_kv(const Target& target) {
  const auto stats = target.store().stats();
  nvme::IdentifyKvNamespace id;
  id.nsze = stats.capacity;
  id.nuse = std::min(stats.bytes, stats.capacity);
  id.nmic = 1;
  id.formats[0] = {.key_max_bytes = nvme::kKvKeyMaxBytes,
                   .value_max_bytes = target.store().max_value_bytes()};
  return id;
}

struct Page {
  std::uint8_t bytes[nvme::kIdentifyBytes]{};
};

Page describe_identifiers(const CardConfig& config) {
  Page page;
  page.bytes[0] = static_cast<std::uint8_t>(nvme::IdentifierType::uuid);
  page.bytes[1] = sizeof(nvme::Uuid);
  std::memcpy(page.bytes + nvme::kDescriptorHeaderBytes, config.uuid.data(), sizeof(nvme::Uuid));
  auto* const csi = page.bytes + nvme::kDescriptorHeaderBytes + sizeof(nvme::Uuid);
  csi[0] = static_cast<std::uint8_t>(nvme::IdentifierType::csi);
  csi[1] = 1;
  csi[nvme::kDescriptorHeaderBytes] = nvme::kCsiKeyValue;
  return page;
}

void list_namespaces(Connection& connection, const Request& request) {
  const auto after = request.sqe.nsid;
  if (after >= nvme::kBroadcastNsid - 1) {
    return connection.respond(request.sqe.cid, nvme::dnr(nvme::kInvalidNamespace));
  }
  nvme::NamespaceList list;
  if (after < kNamespaceId) list.nsid[0] = kNamespaceId;
  answer(connection, request, list);
}

void identify_namespace(Connection& connection, const Request& request, Cns cns) {
  const auto& target = connection.target();
  const bool any = cns == Cns::namespace_nvm && request.sqe.nsid == nvme::kBroadcastNsid;
  if (request.sqe.nsid != kNamespaceId && !any) {
    return connection.respond(request.sqe.cid, nvme::dnr(nvme::kInvalidNamespace));
  }
  if (cns == Cns::namespace_nvm) return answer(connection, request, describe_common(target));
  if (cns == Cns::namespace_command_set) return answer(connection, request, describe_kv(target));
  if (cns == Cns::namespace_descriptors)
    return answer(connection, request, describe_identifiers(target.config()));
  nvme::IdentifyNamespaceIndependent independent;
  independent.nmic = 1;
  independent.nstat = 1;
  answer(connection, request, independent);
}

}  // namespace

void execute_identify(Connection& connection, const Request& request) {
  const auto& sqe = request.sqe;
  const auto fail = [&](nvme::Status status) { connection.respond(sqe.cid, nvme::dnr(status)); };
  if (sqe.sgl.identifier != nvme::kSglTransport) return fail(nvme::kSglTypeInvalid);
  if (sqe.sgl.length < nvme::kIdentifyBytes) return fail(nvme::kDataSglLengthInvalid);
  const auto cns = static_cast<Cns>(sqe.cdw10 & 0xFFU);
  const bool of_command_set = cns == Cns::namespace_command_set || cns == Cns::controller_command_set ||
                              cns == Cns::active_namespaces_command_set;
  if (of_command_set && sqe.cdw11 >> 24U != nvme::kCsiKeyValue) return fail(nvme::kInvalidField);
  switch (cns) {
    case Cns::controller:
      return answer(connection, request, describe_controller(connection));
    case Cns::active_namespaces:
    case Cns::active_namespaces_command_set:
      return list_namespaces(connection, request);
    case Cns::namespace_nvm:
    case Cns::namespace_descriptors:
    case Cns::namespace_command_set:
    case Cns::namespace_independent:
      return identify_namespace(connection, request, cns);
    case Cns::controller_command_set:
      return answer(connection, request, Page{});  // the KV command set has nothing to tell there
    case Cns::command_set_combinations: {
      nvme::CommandSetCombinations combinations;
      combinations.combination[0] = std::uint64_t{1} << nvme::kCsiKeyValue;
      return answer(connection, request, combinations);
    }
  }
  fail(nvme::kInvalidField);
}

}  // namespace akv::softcard
