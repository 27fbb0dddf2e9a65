// The first questions to any controller: Connect of the admin queue, what it can do, enabling, readiness.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "card/card_set.hpp"
#include "fabric/queue_pair.hpp"
#include "nvme/connect.hpp"
#include "nvme/identify.hpp"
#include "nvme/registers.hpp"

namespace akv::card {

inline constexpr std::uint32_t kAdminDepth =
    31;  // SQSIZE of the admin queue; the smallest that fabrics allow

// Who connects to whom.
struct Identity {
  std::string host_nqn;
  nvme::Uuid host_id{};
  std::string subsystem_nqn;
  std::string serial;
  std::optional<nvme::Uuid> namespace_uuid;
};

// Fills Connect's data; `cntlid` is kDynamicController on the admin queue.
[[nodiscard]] nvme::ConnectData make_connect_data(const Identity& identity, std::uint16_t cntlid);

// What follows an answer in a dialog of one command at a time. wait_and_send: the controller is not ready
// yet, ask again a little later.
enum class NextStep : std::uint8_t { send, wait_and_send, done, failed };
inline constexpr std::chrono::milliseconds kReadyPoll{20};  // the little later

class ControllerStart {
 public:
  enum class CommandSets : std::uint8_t {
    all,         // it must have I/O command sets beside NVM
    as_offered,  // NVM alone will do
  };

  // `keep_alive_ms` 0: the controller waits for no keep-alives.
  ControllerStart(const Identity& identity, std::uint32_t keep_alive_ms, CommandSets wanted);
  ControllerStart(const ControllerStart&) = delete;
  ControllerStart& operator=(const ControllerStart&) = delete;

  // The command to send now. Its buffer is this object's.
  [[nodiscard]] fabric::Command command();
  // Judges the answer to it.
  [[nodiscard]] NextStep on_response(const fabric::Response& response);

  [[nodiscard]] bool connected() const noexcept { return step_ != Step::connect; }
  // After done.
  [[nodiscard]] std::uint16_t cntlid() const noexcept { return cntlid_; }
  [[nodiscard]] const nvme::Cap& capabilities() const noexcept { return capabilities_; }
  // After failed.
  [[nodiscard]] Trouble failure() const noexcept { return failure_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  enum class Step : std::uint8_t { connect, capabilities, enable, ready };

  NextStep on_status(nvme::Status status);
  NextStep on_connect(const nvme::Cqe& cqe);
  NextStep on_capabilities(const nvme::Cqe& cqe);
  NextStep on_ready(const nvme::Cqe& cqe);
  NextStep go(Step step) noexcept;
  NextStep fail(Trouble trouble, std::string reason);

  const std::string subsystem_nqn_;
  const std::uint32_t keep_alive_ms_;
  const CommandSets wanted_;
  nvme::ConnectData connect_data_;
  const std::array<iovec, 1> vector_{iovec{&connect_data_, sizeof connect_data_}};
  Step step_{Step::connect};
  std::uint16_t cntlid_{0};
  nvme::Cap capabilities_{};
  Trouble failure_{Trouble::none};
  std::string reason_;
};

}  // namespace akv::card
