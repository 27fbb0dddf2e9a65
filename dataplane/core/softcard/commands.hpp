// What the card does with commands. Each function answers through the connection, now or (a store whose data
// has still to come) later.
#pragma once

#include <cstdint>

#include "nvme/kv.hpp"
#include "softcard/value.hpp"

namespace akv::softcard {

class Connection;
class Target;
struct Request;

// Before Connect: nothing but Connect.
void execute_unconnected(Connection& connection, const Request& request);
void execute_admin(Connection& connection, const Request& request);
void execute_io(Connection& connection, const Request& request);

// Whether `sqe`, a command of an I/O queue, is a store of just these bytes of in-capsule data that may
// succeed.
[[nodiscard]] bool stores_capsule(const Target& target, const nvme::Sqe& sqe, std::uint32_t bytes);

// The data of a store is complete. `budgeted` bytes of the receive budget are held until it is done.
void finish_store(Connection& connection, std::uint16_t cid, const nvme::KvCommand& command, Value value,
                  std::uint32_t budgeted);

// Fabrics commands on a connected queue (NVMe Base 2.0, 6).
void execute_fabrics(Connection& connection, const Request& request);

// Identify (5.17), with its parameters checked by execute_admin.
void execute_identify(Connection& connection, const Request& request);

}  // namespace akv::softcard
