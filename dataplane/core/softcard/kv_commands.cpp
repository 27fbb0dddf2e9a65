// The Key Value Command Set (NVMe KV 1.0, 3.2).
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "softcard/commands.hpp"
#include "softcard/connection.hpp"
#include "softcard/controller.hpp"
#include "softcard/target.hpp"

namespace akv::softcard {
namespace {

using nvme::KvCommand;
using nvme::KvOpcode;
using nvme::Status;

bool is_kv_opcode(std::uint8_t opcode) {
  switch (static_cast<KvOpcode>(opcode)) {
    case KvOpcode::store:
    case KvOpcode::retrieve:
    case KvOpcode::list:
    case KvOpcode::remove:
    case KvOpcode::exist:
      return true;
  }
  return false;
}

void store(Connection& connection, const Request& request, const KvCommand& command) {
  const auto& sgl = request.sqe.sgl;
  auto& target = connection.target();
  const auto fail = [&](Status status) { connection.respond(request.sqe.cid, status); };
  if (command.size > target.store().max_value_bytes()) return fail(nvme::dnr(nvme::kKvInvalidValueSize));
  if (sgl.length != command.size) return fail(nvme::dnr(nvme::kDataSglLengthInvalid));
  // Before its data is asked for; the store asks again, for another may come in between.
  const auto allowed = check_store_options(target.store().contains(command.key), command.options);
  if (allowed != nvme::kSuccess) return fail(allowed);
  if (sgl.identifier == nvme::kSglInCapsule || command.size == 0) {
    if (sgl.identifier == nvme::kSglInCapsule && sgl.address != 0)
      return fail(nvme::dnr(nvme::kSglOffsetInvalid));
    if (request.view().size() != command.size) return fail(nvme::dnr(nvme::kDataSglLengthInvalid));
    return finish_store(connection, request.sqe.cid, command, {.bytes = request.data, .size = command.size},
                        0);
  }
  if (sgl.identifier != nvme::kSglTransport) return fail(nvme::dnr(nvme::kSglTypeInvalid));
  if (request.data_bytes != 0) return fail(nvme::dnr(nvme::kDataSglLengthInvalid));
  connection.begin_store(request.sqe.cid, command);
}

// Whether `size` bytes can go to the host by the command's SGL.
Status check_buffer(const Target& target, const Request& request, std::uint32_t size) {
  if (size > target.max_transfer_bytes()) return nvme::dnr(nvme::kInvalidField);
  if (size == 0) return nvme::kSuccess;
  if (request.sqe.sgl.identifier != nvme::kSglTransport) return nvme::dnr(nvme::kSglTypeInvalid);
  if (request.sqe.sgl.length != size) return nvme::dnr(nvme::kDataSglLengthInvalid);
  return nvme::kSuccess;
}

// A value is sent from where it lies, but not where that would keep far more memory than goes to the host: a
// host that looks at the beginnings of values and takes no answers would hold them all.
TxQueue::Payload first_bytes(const Value& value, std::uint32_t size) {
  const auto bytes = value.view().first(std::min(value.size, size));
  if (2 * bytes.size() >= value.held()) return {.hold = value.bytes, .bytes = bytes, .memory = value.held()};
  auto copy = allocate_bytes(bytes.size());
  std::ranges::copy(bytes, copy.get());
  const std::span<const std::byte> copied(copy.get(), bytes.size());
  return {.hold = std::move(copy), .bytes = copied};
}

// `size`: of the host's buffer.
void finish_retrieve(Target& target, std::uint64_t connection_id, std::uint16_t cid, std::uint32_t size,
                     Status status, const Value& value) {
  if (status != nvme::kSuccess) ++target.counters().retrieve_misses;
  auto* const connection = target.find_connection(connection_id);
  if (connection == nullptr) return;
  connection->end_pending(cid);
  if (status != nvme::kSuccess) return connection->respond(cid, status);
  auto data = first_bytes(value, size);
  target.counters().bytes_out += data.bytes.size();
  connection->respond_data(cid, std::move(data), value.size);
}

void retrieve(Connection& connection, const Request& request, const KvCommand& command) {
  auto& target = connection.target();
  const auto cid = request.sqe.cid;
  if (const auto status = check_buffer(target, request, command.size); status != nvme::kSuccess) {
    return connection.respond(cid, status);
  }
  if (!connection.begin_pending(cid, target.store().find(command.key).value_or(0))) return;
  target.access().get(command.key, [&target, id = connection.id(), cid, size = command.size](
                                       Status status, const Value& value) {
    finish_retrieve(target, id, cid, size, status, value);
  });
}

void remove(Connection& connection, std::uint16_t cid, const KvCommand& command) {
  auto& target = connection.target();
  if (!connection.begin_pending(cid, 0)) return;
  target.access().remove(command.key, [&target, id = connection.id(), cid](Status status) {
    auto* const asked = target.find_connection(id);
    if (asked == nullptr) return;
    asked->end_pending(cid);
    asked->respond(cid, status);
  });
}

// 3.2.2: as many keys as the host's buffer takes, in bytewise order. They take memory as they are found: a
// buffer's size is the host's word alone.
void list(Connection& connection, const Request& request, const KvCommand& command) {
  const auto status = check_buffer(connection.target(), request, command.size);
  if (status != nvme::kSuccess) return connection.respond(request.sqe.cid, status);
  if (command.size < nvme::kListHeaderBytes) {
    return connection.respond(request.sqe.cid, nvme::dnr(nvme::kInvalidField));
  }
  std::vector<std::byte> found(nvme::kListHeaderBytes);
  std::uint32_t count = 0;
  connection.target().store().walk(command.key, [&](const nvme::KvKey& key) {
    const auto entry = nvme::list_entry_bytes(key.length);
    const auto used = found.size();
    if (used + entry > command.size) return false;
    found.resize(used + entry);
    store_le(found.data() + used, std::uint16_t{key.length});
    std::memcpy(found.data() + used + 2, key.bytes.data(), key.length);
    ++count;
    return true;
  });
  store_le(found.data(), count);
  auto bytes = allocate_bytes(found.size());
  std::ranges::copy(found, bytes.get());
  const std::span<const std::byte> data(bytes.get(), found.size());
  connection.respond_data(request.sqe.cid, {.hold = std::move(bytes), .bytes = data});
}

void dispatch(Connection& connection, const Request& request, const KvCommand& command) {
  auto& target = connection.target();
  auto& counters = target.counters();
  const auto cid = request.sqe.cid;
  if (command.key.length == 0 && command.opcode != KvOpcode::list) {
    return connection.respond(cid, nvme::dnr(nvme::kKvInvalidKeySize));
  }
  switch (command.opcode) {
    case KvOpcode::store:
      ++counters.store;
      return store(connection, request, command);
    case KvOpcode::retrieve:
      ++counters.retrieve;
      return retrieve(connection, request, command);
    case KvOpcode::list:
      ++counters.list;
      return list(connection, request, command);
    case KvOpcode::remove:
      ++counters.remove;
      return remove(connection, cid, command);
    case KvOpcode::exist:
      ++counters.exist;
      return connection.respond(
          cid, target.store().contains(command.key) ? nvme::kSuccess : nvme::kKvKeyDoesNotExist);
  }
}

}  // namespace

void execute_io(Connection& connection, const Request& request) {
  const auto& sqe = request.sqe;
  const auto fail = [&](Status status) { connection.respond(sqe.cid, nvme::dnr(status)); };
  if ((sqe.flags & nvme::kFlagPsdtMask) != nvme::kFlagSgl) return fail(nvme::kInvalidField);
  if (sqe.opcode == nvme::kFabricsOpcode) return execute_fabrics(connection, request);
  if (!connection.controller()->csts().ready()) return fail(nvme::kCommandSequenceError);
  if (!is_kv_opcode(sqe.opcode)) return fail(nvme::kInvalidOpcode);
  if (sqe.nsid != kNamespaceId) return fail(nvme::kInvalidNamespace);
  const auto command = nvme::parse_kv(sqe);
  if (!command) return fail(nvme::kKvInvalidKeySize);
  dispatch(connection, request, *command);
}

bool stores_capsule(const Target& target, const nvme::Sqe& sqe, std::uint32_t bytes) {
  if (sqe.opcode != static_cast<std::uint8_t>(KvOpcode::store)) return false;
  if (sqe.sgl.identifier != nvme::kSglInCapsule || sqe.sgl.length != bytes) return false;
  const auto command = nvme::parse_kv(sqe);
  return command && command->key.length > 0 && command->size == bytes &&
         bytes <= target.store().max_value_bytes();
}

void finish_store(Connection& connection, std::uint16_t cid, const KvCommand& command, Value value,
                  std::uint32_t budgeted) {
  auto& target = connection.target();
  const auto bytes = value.size;
  if (!connection.begin_pending(cid, bytes - budgeted)) return target.budget().give_back(budgeted);
  target.access().put(command.key, std::move(value), command.options,
                      [&target, id = connection.id(), cid, bytes, budgeted](Status status) {
                        if (status == nvme::kSuccess) target.counters().bytes_in += bytes;
                        auto* const asked = target.find_connection(id);
                        if (asked == nullptr) return target.budget().give_back(budgeted);
                        asked->give_back(budgeted);
                        asked->end_pending(cid);
                        asked->respond(cid, status);
                      });
}

}  // namespace akv::softcard
