// Asks one NVMe-oF subsystem who it is: one admin connection that is closed again.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "card/controller_start.hpp"
#include "fabric/address.hpp"
#include "fabric/queue_pair.hpp"
#include "nvme/descriptors.hpp"
#include "nvme/identify.hpp"

namespace akv::card {

struct NamespaceFacts {
  std::uint32_t nsid{0};
  nvme::NamespaceIdentifiers identifiers;
};

// What a subsystem says of itself. Texts are printable ASCII: other bytes became '?'.
struct SubsystemFacts {
  std::string serial;
  std::string model;
  std::string firmware;
  std::string nqn;
  bool many_controllers{false};  // CMIC bit 1
  std::vector<NamespaceFacts> namespaces;
};

struct IdentifyTarget {
  fabric::TcpAddress address;
  std::string subsystem_nqn;
  std::string host_nqn;
  nvme::Uuid host_id{};
};

// Nobody answered in time, or the connection was lost.
struct Unreachable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Somebody answered, and refused or broke the protocol.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The questions, one command at a time, as a state machine without I/O.
class IdentifyWalk {
 public:
  using Next = NextStep;

  explicit IdentifyWalk(const IdentifyTarget& target);
  IdentifyWalk(const IdentifyWalk&) = delete;
  IdentifyWalk& operator=(const IdentifyWalk&) = delete;

  // The command to send now. Its buffer is this object's.
  [[nodiscard]] fabric::Command command();
  // Judges the answer to it.
  [[nodiscard]] Next on_response(const fabric::Response& response);

  [[nodiscard]] const SubsystemFacts& facts() const noexcept { return facts_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }  // after failed

 private:
  enum class Step : std::uint8_t { start, controller, namespaces, descriptors };

  Next on_start(const fabric::Response& response);
  Next on_controller();
  Next on_namespaces();
  Next on_descriptors();
  Next next_descriptors();
  Next fail(std::string reason);
  Next go(Step step) noexcept;

  ControllerStart start_;
  Step step_{Step::start};
  std::size_t index_{0};  // of the namespace that is asked for
  SubsystemFacts facts_;
  std::string reason_;
  std::array<iovec, 1> vector_{};
  std::array<std::byte, nvme::kIdentifyBytes> buffer_{};
};

// Blocks for at most `deadline`. Throws Unreachable or Refused.
[[nodiscard]] SubsystemFacts identify_subsystem(const IdentifyTarget& target,
                                                std::chrono::milliseconds deadline);

}  // namespace akv::card
