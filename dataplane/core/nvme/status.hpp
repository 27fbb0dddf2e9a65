// Status of a completion (NVMe Base 2.0, 3.3.3.2.1 "Status Field"; KV Command Set 1.0, 3.1).
#pragma once

#include <cstdint>
#include <string>

namespace akv::nvme {

// The 15-bit status field without the phase bit: SC in bits 7:0, SCT in 10:8, CRD in 12:11, More 13, DNR 14.
using Status = std::uint16_t;

enum class StatusType : std::uint8_t { generic = 0, command_specific = 1, media = 2, path = 3 };

[[nodiscard]] constexpr Status make_status(StatusType type, std::uint8_t code) noexcept {
  return static_cast<Status>((static_cast<unsigned>(type) << 8U) | code);
}

inline constexpr Status kStatusDnr = 1U << 14U;    // do not retry
inline constexpr Status kStatusCodeMask = 0x07FF;  // SCT and SC: what a status means
[[nodiscard]] constexpr Status status_code(Status status) noexcept {
  return static_cast<Status>(status & kStatusCodeMask);
}
[[nodiscard]] constexpr Status dnr(Status status) noexcept {
  return static_cast<Status>(status | kStatusDnr);
}

// Generic command status (SCT 0).
inline constexpr Status kSuccess = 0x000;
inline constexpr Status kInvalidOpcode = 0x001;
inline constexpr Status kInvalidField = 0x002;
inline constexpr Status kCommandIdConflict = 0x003;
inline constexpr Status kDataTransferError = 0x004;
inline constexpr Status kInternalError = 0x006;
inline constexpr Status kAbortRequested = 0x007;
inline constexpr Status kAbortedSqDeletion = 0x008;
inline constexpr Status kInvalidNamespace = 0x00B;
inline constexpr Status kCommandSequenceError = 0x00C;
inline constexpr Status kDataSglLengthInvalid = 0x00F;
inline constexpr Status kSglTypeInvalid = 0x011;
inline constexpr Status kSglOffsetInvalid = 0x016;
inline constexpr Status kHostIdInconsistent = 0x018;
inline constexpr Status kKeepAliveTimeoutInvalid = 0x01A;
inline constexpr Status kTransientTransportError = 0x022;
inline constexpr Status kCapacityExceeded = 0x081;

// Generic command status of the Key Value Command Set (KV 1.0, figure 3).
inline constexpr Status kKvInvalidValueSize = 0x085;
inline constexpr Status kKvInvalidKeySize = 0x086;
inline constexpr Status kKvKeyDoesNotExist = 0x087;
inline constexpr Status kKvUnrecoveredError = 0x088;
inline constexpr Status kKvKeyExists = 0x089;

// Command specific status (SCT 1).
inline constexpr Status kAsyncEventLimitExceeded = 0x105;
inline constexpr Status kInvalidLogPage = 0x109;
inline constexpr Status kFeatureNotSaveable = 0x10D;
inline constexpr Status kIoCommandSetCombinationRejected = 0x12B;
// Connect (Base 2.0, 6.3, "Command Specific Status Values").
inline constexpr Status kConnectIncompatibleFormat = 0x180;
inline constexpr Status kConnectControllerBusy = 0x181;
inline constexpr Status kConnectInvalidParameters = 0x182;
inline constexpr Status kConnectRestartDiscovery = 0x183;
inline constexpr Status kConnectInvalidHost = 0x184;

// For logs: "key does not exist (sct 0, sc 0x87)".
[[nodiscard]] std::string describe_status(Status status);

}  // namespace akv::nvme
