#include "nvme/status.hpp"

#include <array>
#include <cstdio>
#include <string_view>

namespace akv::nvme {
namespace {

struct Name {
  Status status;
  std::string_view text;
};

constexpr std::array kNames{
    Name{kSuccess, "success"},
    Name{kInvalidOpcode, "invalid command opcode"},
    Name{kInvalidField, "invalid field in command"},
    Name{kCommandIdConflict, "command id conflict"},
    Name{kDataTransferError, "data transfer error"},
    Name{kInternalError, "internal error"},
    Name{kAbortRequested, "abort requested"},
    Name{kAbortedSqDeletion, "aborted by deletion of the submission queue"},
    Name{kInvalidNamespace, "invalid namespace or format"},
    Name{kCommandSequenceError, "command sequence error"},
    Name{kDataSglLengthInvalid, "data SGL length invalid"},
    Name{kSglTypeInvalid, "SGL descriptor type invalid"},
    Name{kSglOffsetInvalid, "SGL offset invalid"},
    Name{kHostIdInconsistent, "host identifier inconsistent format"},
    Name{kKeepAliveTimeoutInvalid, "keep alive timeout invalid"},
    Name{kTransientTransportError, "transient transport error"},
    Name{kCapacityExceeded, "capacity exceeded"},
    Name{kKvInvalidValueSize, "invalid value size"},
    Name{kKvInvalidKeySize, "invalid key size"},
    Name{kKvKeyDoesNotExist, "key does not exist"},
    Name{kKvUnrecoveredError, "unrecovered error"},
    Name{kKvKeyExists, "key exists"},
    Name{kAsyncEventLimitExceeded, "asynchronous event request limit exceeded"},
    Name{kInvalidLogPage, "invalid log page"},
    Name{kFeatureNotSaveable, "feature identifier not saveable"},
    Name{kIoCommandSetCombinationRejected, "I/O command set combination rejected"},
    Name{kConnectIncompatibleFormat, "connect incompatible format"},
    Name{kConnectControllerBusy, "connect controller busy"},
    Name{kConnectInvalidParameters, "connect invalid parameters"},
    Name{kConnectRestartDiscovery, "connect restart discovery"},
    Name{kConnectInvalidHost, "connect invalid host"},
};

}  // namespace

std::string describe_status(Status status) {
  std::string_view text = "status";
  for (const auto& name : kNames) {
    if (name.status == status_code(status)) text = name.text;
  }
  std::array<char, 48> numbers{};
  const int length =
      std::snprintf(numbers.data(), numbers.size(), " (sct %u, sc 0x%02x%s)", (status >> 8U) & 7U,
                    status & 0xFFU, (status & kStatusDnr) != 0 ? ", dnr" : "");
  return std::string(text).append(numbers.data(), static_cast<std::size_t>(length));
}

}  // namespace akv::nvme
