// What is asked of a controller between Connect and its first I/O queue, as a state machine without I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "card/card_set.hpp"
#include "card/controller_start.hpp"
#include "fabric/queue_pair.hpp"
#include "nvme/identify.hpp"

namespace akv::card {

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

// Walks through the start, identification and Set Features one command at a time.
class BringUp {
 public:
  using Next = NextStep;

  BringUp(Identity identity, std::uint32_t keep_alive_ms, std::uint32_t queue_depth, std::uint16_t queues);
  BringUp(const BringUp&) = delete;
  BringUp& operator=(const BringUp&) = delete;

  // The command to send now. Its buffer is this object's.
  [[nodiscard]] fabric::Command command();
  // Judges the answer to it.
  [[nodiscard]] Next on_response(const fabric::Response& response);

  [[nodiscard]] bool connected() const noexcept { return start_.connected(); }
  [[nodiscard]] const ControllerFacts& facts() const noexcept { return facts_; }
  // After failed: what is wrong with the card, by name and in words.
  [[nodiscard]] Trouble failure() const noexcept { return failure_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  enum class Step : std::uint8_t {
    start,
    controller,
    namespaces,
    descriptors,
    kv_namespace,
    queues,
    async_events,
    done
  };

  Next on_start(const fabric::Response& response);
  Next on_controller();
  Next on_namespaces();
  Next on_descriptors();
  Next on_kv_namespace();
  Next on_queues(const nvme::Cqe& cqe);
  Next on_status(nvme::Status status);
  Next go(Step step) noexcept;
  Next fail(Trouble trouble, std::string reason);
  Next try_next_namespace();
  [[nodiscard]] bool answers_with_data() const noexcept;

  const Identity identity_;
  const std::uint32_t wanted_depth_;
  const std::uint16_t wanted_queues_;
  ControllerStart start_;
  Step step_{Step::start};
  ControllerFacts facts_;
  std::uint32_t page_bytes_{4096};
  std::uint64_t transfer_limit_{0};
  std::uint32_t events_{0};  // asynchronous events to ask for
  nvme::NamespaceList namespaces_{};
  std::size_t namespace_index_{0};
  Trouble failure_{Trouble::none};
  std::string reason_;
  std::string seen_uuids_;
  std::array<iovec, 1> vector_{};
  std::array<std::byte, nvme::kIdentifyBytes> buffer_{};
};

}  // namespace akv::card
