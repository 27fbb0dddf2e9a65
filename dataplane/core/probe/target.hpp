// A subsystem's controller brought up by the shortest way, and one I/O queue of it: any NVMe/TCP target will
// do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "probe/connection.hpp"

namespace akv::probe {

struct TargetConfig {
  fabric::TcpAddress address;
  std::string nqn;
  std::string host_nqn;
  std::uint32_t depth{1};  // commands outstanding
  fabric::DigestPolicy digests{fabric::DigestPolicy::off};
};

enum class Kind : std::uint8_t { block, key_value };

// Of the first namespace that can be used.
struct Facts {
  Kind kind{Kind::block};
  std::uint32_t nsid{0};
  std::uint32_t block_bytes{0};   // block
  std::uint64_t capacity{0};      // block: bytes of the namespace
  std::uint64_t max_io_bytes{0};  // of one command
  std::uint32_t in_capsule_bytes{0};
  std::string model;
};

class Target {
 public:
  // Throws ProbeError.
  Target(Reactor& reactor, const TargetConfig& config);

  [[nodiscard]] const Facts& facts() const noexcept { return facts_; }
  [[nodiscard]] Connection& queue() noexcept { return *queue_; }
  // Keeps the association alive; to be called every few seconds.
  void keep_alive();

 private:
  void connect(Connection& connection, std::uint16_t qid, std::uint16_t sqsize);
  void enable();
  void identify_controller();
  void find_namespace();
  [[nodiscard]] bool take_key_value(std::uint32_t nsid);
  void take_block(std::uint32_t nsid);
  template <nvme::WireStruct T>
  [[nodiscard]] T identify(std::uint8_t cns, std::uint32_t nsid, std::uint8_t csi, const std::string& what);

  Connection admin_;
  std::unique_ptr<Connection> queue_;
  Facts facts_;
  const TargetConfig config_;
  std::uint32_t page_bytes_{4096};
  std::uint16_t cntlid_{0xFFFF};
  std::uint16_t mqes_{0};
  bool command_sets_{false};  // beside NVM
};

}  // namespace akv::probe
