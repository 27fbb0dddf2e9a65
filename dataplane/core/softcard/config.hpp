// What one card is, as its command line says.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "nvme/connect.hpp"

namespace akv::softcard {

inline constexpr std::uint16_t kMaxQueueEntries = 1024;  // MQES + 1
// Of admin and Fabrics commands, whose capsules Identify Controller does not bound (TCP transport 1.0,
// in-capsule data).
inline constexpr std::uint32_t kAdminInCapsuleBytes = 8192;
inline constexpr std::uint32_t kMaxH2cDataBytes = 1U << 20U;
inline constexpr std::uint32_t kNamespaceId = 1;

struct CardConfig {
  std::string id;      // as the card CLI lists it, e.g. "xdp0"
  std::string serial;  // at most 20 characters: the subsystem's serial, and the card's identity
  std::string nqn;
  nvme::Uuid uuid{};          // of the namespace
  std::uint64_t capacity{0};  // bytes
  std::optional<std::filesystem::path> file;
  bool direct{false};             // past the page cache
  std::uint16_t file_readers{8};  // threads that read the file
  std::uint64_t max_keys{0};      // of a file; 0: as many as its capacity gives
  std::uint32_t max_value_bytes{std::uint32_t{8} << 20U};
  std::uint16_t max_queues{64};  // I/O queues of one controller
  std::uint32_t max_connections{1024};
  // Data that a command of an I/O queue may have in its capsule (IOCCSZ): a block of 256 KiB in its envelope
  // fits. A multiple of 16.
  std::uint32_t in_capsule_bytes{std::uint32_t{260} << 10U};
  bool require_digests{false};
  bool short_wakeups{true};
  std::uint64_t receive_bytes{std::uint64_t{128} << 20U};  // memory for stores under way (ReceiveBudget)
  std::chrono::milliseconds handshake_timeout{5000};       // from accept to a successful Connect
  std::chrono::milliseconds stall_timeout{30000};  // for one PDU, or 1 MiB of a transfer, in either direction
};

}  // namespace akv::softcard
