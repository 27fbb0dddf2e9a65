// What is asked of a controller between Connect and its first I/O queue, as a state machine without I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "card/card_set.hpp"
#include "fabric/queue_pair.hpp"
#include "nvme/connect.hpp"
#include "nvme/identify.hpp"

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

// What the controller told about itself.
struct ControllerFacts {
  std::uint16_t cntlid{0};
  std::uint32_t nsid{0};
  std::uint32_t max_value_bytes{0};
  std::uint32_t in_capsule_bytes{0};
  std::uint32_t queue_depth{0};  // commands outstanding on an I/O queue
  std::uint16_t queues{0};       // I/O queues granted, at most those wanted
  std::uint16_t aborts{1};       // Abort commands that may be outstanding (ACL)
};

// Walks through Connect, property access, identification and Set Features one command at a time.
class BringUp {
 public:
  enum class Next : std::uint8_t { send, wait_and_send, done, failed };

  BringUp(Identity identity, std::uint32_t keep_alive_ms, std::uint32_t queue_depth, std::uint16_t queues);
  BringUp(const BringUp&) = delete;
  BringUp& operator=(const BringUp&) = delete;

  // The command to send now. Its buffer is this object's.
  [[nodiscard]] fabric::Command command();
  // Judges the answer to it. wait_and_send: the controller is not ready yet, ask again a little later.
  [[nodiscard]] Next on_response(const fabric::Response& response);

  [[nodiscard]] bool connected() const noexcept { return step_ != Step::connect; }
  [[nodiscard]] const ControllerFacts& facts() const noexcept { return facts_; }
  // After failed: which state the card is in, and why.
  [[nodiscard]] CardState failure() const noexcept { return failure_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  enum class Step : std::uint8_t {
    connect,
    capabilities,
    enable,
    ready,
    controller,
    namespaces,
    descriptors,
    kv_namespace,
    queues,
    async_events,
    done
  };

  Next on_connect(const fabric::Response& response);
  Next on_capabilities(const nvme::Cqe& cqe);
  Next on_ready(const nvme::Cqe& cqe);
  Next on_controller();
  Next on_namespaces();
  Next on_descriptors();
  Next on_kv_namespace();
  Next on_queues(const nvme::Cqe& cqe);
  Next on_status(nvme::Status status);
  Next go(Step step) noexcept;
  Next fail(CardState state, std::string reason);
  Next try_next_namespace();
  [[nodiscard]] bool answers_with_data() const noexcept;

  const Identity identity_;
  const std::uint32_t keep_alive_ms_;
  const std::uint32_t wanted_depth_;
  const std::uint16_t wanted_queues_;
  Step step_{Step::connect};
  ControllerFacts facts_;
  std::uint32_t page_bytes_{4096};
  std::uint64_t transfer_limit_{0};
  std::uint32_t events_{0};  // asynchronous events to ask for
  nvme::NamespaceList namespaces_{};
  std::size_t namespace_index_{0};
  CardState failure_{CardState::backoff};
  std::string reason_;
  std::string seen_uuids_;
  std::array<iovec, 1> vector_{};
  alignas(64) std::array<std::byte, nvme::kIdentifyBytes> buffer_{};
};

}  // namespace akv::card
