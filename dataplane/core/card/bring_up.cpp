#include "card/bring_up.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "card/uuid.hpp"
#include "nvme/descriptors.hpp"
#include "nvme/kv.hpp"
#include "nvme/status.hpp"

namespace akv::card {
namespace {

using nvme::Cns;

nvme::Sqe identify(Cns cns, std::uint32_t nsid, std::uint8_t csi) {
  return nvme::make_identify(static_cast<std::uint8_t>(cns), nsid, csi);
}

}  // namespace

BringUp::BringUp(Identity identity, std::uint32_t keep_alive_ms, std::uint32_t queue_depth,
                 std::uint16_t queues)
    : identity_(std::move(identity)),
      wanted_depth_(queue_depth),
      wanted_queues_(queues),
      start_(identity_, keep_alive_ms, ControllerStart::CommandSets::all) {}

bool BringUp::answers_with_data() const noexcept {
  return step_ >= Step::controller && step_ <= Step::kv_namespace;
}

fabric::Command BringUp::command() {
  fabric::Command command;
  const std::uint32_t nsid = namespaces_.nsid[namespace_index_];
  switch (step_) {
    case Step::start:
      return start_.command();
    case Step::controller:
      command.sqe = identify(Cns::controller, 0, 0);
      break;
    case Step::namespaces:
      command.sqe = identify(Cns::active_namespaces_command_set, 0, nvme::kCsiKeyValue);
      break;
    case Step::descriptors:
      command.sqe = identify(Cns::namespace_descriptors, nsid, 0);
      break;
    case Step::kv_namespace:
      command.sqe = identify(Cns::namespace_command_set, nsid, nvme::kCsiKeyValue);
      break;
    case Step::queues:
      command.sqe = nvme::make_set_queues(wanted_queues_);
      break;
    case Step::async_events:
    case Step::done:
      command.sqe = nvme::make_set_async_events(events_);
      break;
  }
  if (answers_with_data()) {
    command.direction = fabric::Direction::from_target;
    buffer_.fill(std::byte{0});
    vector_[0] = {buffer_.data(), buffer_.size()};
    command.data = vector_;
  }
  return command;
}

BringUp::Next BringUp::on_response(const fabric::Response& response) {
  if (step_ == Step::start) return on_start(response);
  // Nobody else can write this buffer, so the bytes were damaged on their way, and the next ones will be.
  if (response.wrong_digest) {
    return fail(Trouble::wrong_digest, "Identify was answered with a wrong data digest");
  }
  const nvme::Status status = response.cqe.status();
  if (status != nvme::kSuccess) return on_status(status);
  if (answers_with_data() && response.received != nvme::kIdentifyBytes) {
    return fail(Trouble::wrong_length,
                "Identify was answered with " + std::to_string(response.received) + " bytes");
  }
  switch (step_) {
    case Step::controller:
      return on_controller();
    case Step::namespaces:
      return on_namespaces();
    case Step::descriptors:
      return on_descriptors();
    case Step::kv_namespace:
      return on_kv_namespace();
    case Step::queues:
      return on_queues(response.cqe);
    case Step::start:
    case Step::async_events:
    case Step::done:
      break;
  }
  return go(Step::done);
}

BringUp::Next BringUp::go(Step step) noexcept {
  step_ = step;
  return step == Step::done ? Next::done : Next::send;
}

BringUp::Next BringUp::fail(Trouble trouble, std::string reason) {
  failure_ = trouble;
  reason_ = std::move(reason);
  return Next::failed;
}

// What a refused command means for the card.
BringUp::Next BringUp::on_status(nvme::Status status) {
  const std::string told = nvme::describe_status(status);
  switch (step_) {
    case Step::namespaces:
      return fail(Trouble::no_kv_namespace, "the controller lists no KV namespaces: " + told);
    case Step::descriptors:
    case Step::kv_namespace:
      return try_next_namespace();
    case Step::async_events:
      return go(Step::done);  // a card without them is only slower to be noticed
    case Step::queues:
      return fail(Trouble::too_few_queues, "Set Features (Number of Queues) was refused: " + told);
    default:
      return fail(Trouble::refused, "the controller can't be brought up: " + told);
  }
}

BringUp::Next BringUp::on_start(const fabric::Response& response) {
  const Next next = start_.on_response(response);
  if (next == Next::failed) return fail(start_.failure(), start_.reason());
  if (next != Next::done) return next;
  const nvme::Cap& cap = start_.capabilities();
  facts_.cntlid = start_.cntlid();
  page_bytes_ = cap.min_page_bytes();
  // A queue of n + 1 entries takes n commands, and MQES is 0's based.
  facts_.queue_depth = std::min<std::uint32_t>(wanted_depth_, std::max<std::uint32_t>(cap.mqes(), 1));
  return go(Step::controller);
}

BringUp::Next BringUp::on_controller() {
  const auto id = nvme::read_wire<nvme::IdentifyController>(std::span<const std::byte>(buffer_));
  const auto serial = nvme::trimmed(id.sn);
  if (serial != identity_.serial) {
    return fail(Trouble::wrong_serial, "serial \"" + std::string(serial) + "\" answers instead");
  }
  facts_.in_capsule_bytes = id.icdoff == 0 ? nvme::in_capsule_bytes(id) : 0;
  if (id.maxcmd > 0) facts_.queue_depth = std::min<std::uint32_t>(facts_.queue_depth, id.maxcmd);
  events_ = id.oaes & nvme::kOaesNamespaceAttribute;
  facts_.aborts = static_cast<std::uint16_t>(id.acl + 1U);  // 0's based
  constexpr unsigned kNoLimit = 32;  // 2^20 pages and more are beyond any 32-bit length
  const unsigned shift = id.mdts == 0 ? kNoLimit : std::min<unsigned>(id.mdts, kNoLimit);
  transfer_limit_ = std::uint64_t{page_bytes_} << shift;
  return go(Step::namespaces);
}

BringUp::Next BringUp::on_namespaces() {
  namespaces_ = nvme::read_wire<nvme::NamespaceList>(std::span<const std::byte>(buffer_));
  namespace_index_ = 0;
  if (namespaces_.nsid[0] == 0) return fail(Trouble::no_kv_namespace, "the subsystem has no KV namespace");
  return go(Step::descriptors);
}

BringUp::Next BringUp::try_next_namespace() {
  constexpr std::size_t kTries = 64;  // bounds what a strange list can cost
  ++namespace_index_;
  if (namespace_index_ < kTries && namespaces_.nsid[namespace_index_] != 0) return go(Step::descriptors);
  if (!identity_.namespace_uuid) {
    return fail(Trouble::no_kv_namespace, "no namespace of the subsystem can be used as a KV namespace");
  }
  return fail(Trouble::no_kv_namespace, "no KV namespace has UUID " + format_uuid(*identity_.namespace_uuid) +
                                            (seen_uuids_.empty() ? "" : "; seen:" + seen_uuids_));
}

BringUp::Next BringUp::on_descriptors() {
  const auto found = nvme::parse_descriptors(buffer_);
  if (found.csi != nvme::kCsiKeyValue) return try_next_namespace();
  if (identity_.namespace_uuid && found.uuid != identity_.namespace_uuid) {
    if (found.uuid && seen_uuids_.size() < 256) seen_uuids_ += " " + format_uuid(*found.uuid);
    return try_next_namespace();
  }
  return go(Step::kv_namespace);
}

BringUp::Next BringUp::on_kv_namespace() {
  const auto id = nvme::read_wire<nvme::IdentifyKvNamespace>(std::span<const std::byte>(buffer_));
  const nvme::KvFormat format = id.format();
  if (format.key_max_bytes < nvme::kKvKeyMaxBytes || format.value_max_bytes == 0) return try_next_namespace();
  facts_.nsid = namespaces_.nsid[namespace_index_];
  facts_.max_value_bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(format.value_max_bytes, transfer_limit_));
  return go(Step::queues);
}

BringUp::Next BringUp::on_queues(const nvme::Cqe& cqe) {
  facts_.queues = std::min(nvme::granted_queues(cqe.dw0), wanted_queues_);
  return go(events_ == 0 ? Step::done : Step::async_events);
}

}  // namespace akv::card
