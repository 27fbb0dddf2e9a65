// How a connection came to its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nvme/pdu.hpp"

namespace akv::fabric {

enum class Ending : std::uint8_t {
  asked,         // by close()
  unreachable,   // no TCP connection came about, or the network lost it
  unanswered,    // a TCP connection, and no greeting in time
  reset,         // by the target
  closed,        // the target ended its direction, or both
  wrong_id,      // the target answered what was not asked
  wrong_length,  // a PDU, or what it carries, is longer or shorter than it may be
  wrong_digest,
  protocol,    // the target broke the protocol in another way
  terminated,  // the target told that it ends the connection, and why
  local,       // this machine could not go on
};

// Why a connection ends.
struct Fault {
  std::string reason;
  std::optional<nvme::FatalError> fatal{};  // the target is told by a termination PDU
  Ending ending{Ending::protocol};
};

// What an error number of a socket call says of the connection.
[[nodiscard]] Ending ending_of(int error) noexcept;
// `what` failed with an error number.
[[nodiscard]] Fault system_fault(const std::string& what, int error);

}  // namespace akv::fabric
