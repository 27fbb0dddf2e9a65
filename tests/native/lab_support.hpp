// The lab's own host: an association with a foreign target, driven by the test's thread, and the line to the
// virtual machine that the target runs in.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "fabric/tcp_queue_pair.hpp"
#include "nvme/connect.hpp"
#include "nvme/identify.hpp"
#include "nvme/registers.hpp"
#include "nvme/status.hpp"

namespace akv::lab {

using fabric::Command;
using fabric::DigestPolicy;
using fabric::Direction;
using fabric::Response;

// The target may be an emulated machine on a busy host.
inline constexpr std::chrono::seconds kPatience{60};
inline constexpr const char* kHostNqn =
    "nqn.2014-08.org.nvmexpress:uuid:7f0c2a34-9d52-4f6e-8a0e-5b7d1c3e9f10";
inline constexpr std::uint32_t kBlockBytes = 512;

inline std::string setting(const char* name) {
  const char* value = std::getenv(name);
  EXPECT_NE(value, nullptr) << name << " is not set; run `make lab`";
  return value == nullptr ? "" : value;
}

// What the table of results says of the running test.
inline void row(const std::string& case_text) {
  ::testing::Test::RecordProperty("case", case_text);
}
inline void seen(const std::string& result) {
  ::testing::Test::RecordProperty("seen", result);
}

inline std::string told(const std::optional<Response>& response) {
  return response ? nvme::describe_status(response->cqe.status()) : "no answer";
}

// A reason without the target's address, which differs from run to run.
inline std::string without_address(std::string reason) {
  const auto begin = reason.find("tcp://");
  const auto end = reason.find(": ", begin == std::string::npos ? 0 : begin);
  if (begin != std::string::npos && end != std::string::npos) reason.erase(begin, end + 2 - begin);
  return reason;
}

// Runs shell commands in the guest.
class Guest {
 public:
  Guest() : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const std::string path = setting("AKV_LAB_CONTROL");
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    const auto* where = reinterpret_cast<const sockaddr*>(&address);
    EXPECT_EQ(::connect(socket_.get(), where, sizeof address), 0) << path;
    const timeval patience{kPatience.count(), 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  // What the command printed; it must succeed.
  std::string run(const std::string& command) {
    const std::string line = command + "\n";
    EXPECT_EQ(::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(line.size()));
    std::string answer;
    std::array<char, 512> piece;
    while (!answer.ends_with(">\n") || answer.rfind("<rc ") == std::string::npos) {
      const ssize_t got = ::recv(socket_.get(), piece.data(), piece.size(), 0);
      EXPECT_GT(got, 0) << "the guest does not answer: " << answer;
      if (got <= 0) return answer;
      answer.append(piece.data(), static_cast<std::size_t>(got));
    }
    EXPECT_TRUE(answer.ends_with("<rc 0>\n")) << command << ": " << answer;
    return answer;
  }
  void take_port_down() { run("rm $port/subsystems/*"); }
  void bring_port_up() { run("ln -s $subsystem $port/subsystems/"); }
  void enable_namespace(unsigned nsid, bool on) {
    run("echo " + std::to_string(on ? 1 : 0) + " >$subsystem/namespaces/" + std::to_string(nsid) + "/enable");
  }

 private:
  UniqueFd socket_;
};

class Queue final : private fabric::QueuePairClient {
 public:
  Queue(Reactor& reactor, const fabric::TcpQueuePairConfig& config)
      : reactor_(reactor), queue_pair_(reactor, config, *this) {}
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  [[nodiscard]] bool open() {
    queue_pair_.start();
    return run_until([this] { return open_ || closed; }) && open_;
  }
  // Nothing when the connection ended or the target was silent for a minute.
  std::optional<Response> call(const Command& command) {
    constexpr std::uint32_t kTag = 0xFFFF;
    responses.erase(kTag);
    if (!submit(command, kTag)) return std::nullopt;
    if (!run_until([&] { return responses.contains(kTag) || closed; })) return std::nullopt;
    const auto found = responses.find(kTag);
    return found == responses.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] bool submit(const Command& command, std::uint32_t tag) {
    const bool taken = queue_pair_.submit(command, tag);
    queue_pair_.flush();
    return taken;
  }
  [[nodiscard]] std::uint16_t command_id(std::uint32_t tag) const {
    const auto id = queue_pair_.command_id(tag);
    EXPECT_TRUE(id) << "no outstanding command has tag " << tag;
    return id.value_or(0);
  }
  template <typename Condition>
  [[nodiscard]] bool run_until(Condition done, std::chrono::milliseconds patience = kPatience) {
    const Deadline deadline(monotonic_now(), patience);
    while (!done() && !deadline.passed(monotonic_now()))
      reactor_.run_once(std::chrono::milliseconds(50));
    return done();
  }

  std::map<std::uint32_t, Response> responses;
  std::optional<std::string> closed;

 private:
  void on_open() noexcept override { open_ = true; }
  void on_response(std::uint32_t tag, const Response& response) noexcept override {
    EXPECT_FALSE(closed) << "an answer after the end of the connection";
    EXPECT_TRUE(responses.emplace(tag, response).second) << "answered twice";
  }
  void on_closed(fabric::Ending /*how*/, const std::string& reason) noexcept override {
    EXPECT_FALSE(closed) << "closed twice";
    closed = reason;
  }

  Reactor& reactor_;
  bool open_{false};
  fabric::TcpQueuePair queue_pair_;
};

struct HostOptions {
  std::string port{setting("AKV_LAB_TRSVCID")};  // a proxy's, or the target's
  std::string subsystem_nqn{setting("AKV_LAB_NQN")};
  std::string host_nqn{kHostNqn};
  DigestPolicy header_digest{DigestPolicy::off};
  DigestPolicy data_digest{DigestPolicy::off};
  std::uint32_t kato_ms{600'000};
  std::uint32_t in_capsule_bytes{0};  // 0: as the controller tells
};

// One controller of the target and any number of its queues.
class Host {
 public:
  explicit Host(HostOptions options = {}) : options_(std::move(options)) {}

  std::unique_ptr<Queue> transport(std::uint32_t depth) {
    return std::make_unique<Queue>(
        reactor, fabric::TcpQueuePairConfig{.address = {setting("AKV_LAB_TRADDR"), options_.port},
                                            .connect_timeout = kPatience,
                                            .depth = depth,
                                            .in_capsule_bytes = in_capsule_bytes,
                                            .header_digest = options_.header_digest,
                                            .data_digest = options_.data_digest});
  }
  std::optional<Response> connect(Queue& queue, nvme::ConnectCommand command) {
    nvme::ConnectData data;
    data.hostid = {0x61, 0x6B, 0x76, 0x2D, 0x6C, 0x61, 0x62};
    data.cntlid = command.qid == 0 ? nvme::kDynamicController : cntlid;
    EXPECT_TRUE(nvme::set_nqn(data.subnqn, options_.subsystem_nqn));
    EXPECT_TRUE(nvme::set_nqn(data.hostnqn, options_.host_nqn));
    const iovec vector{&data, sizeof data};
    return queue.call({.sqe = nvme::make_connect(command),
                       .direction = Direction::to_target,
                       .data = std::span(&vector, 1),
                       .must_be_in_capsule = true});
  }

  // Admin queue, enabled and identified. False with `trouble` when the target does otherwise.
  [[nodiscard]] bool bring_up(std::uint16_t queues = 1) {
    admin = transport(31);
    if (!admin->open()) return fail("the connection did not open: " + admin->closed.value_or("silence"));
    const auto connected = connect(*admin, {.qid = 0, .sqsize = 31, .kato_ms = options_.kato_ms});
    if (!ok(connected)) return fail("Connect: " + told(connected));
    cntlid = nvme::parse_connect_result(connected->cqe.dw0).cntlid;
    return enable() && identify() && set_queues(queues);
  }
  // Null with `trouble` when the target does otherwise.
  std::unique_ptr<Queue> io_queue(std::uint16_t qid, std::uint16_t depth = 32, std::uint8_t cattr = 0) {
    auto queue = transport(depth);
    if (!queue->open()) {
      trouble = "the connection did not open: " + queue->closed.value_or("silence");
      return nullptr;
    }
    const auto connected = connect(*queue, {.qid = qid, .sqsize = depth, .cattr = cattr});
    if (!ok(connected)) {
      trouble = "Connect: " + told(connected) + " " + queue->closed.value_or("");
      return nullptr;
    }
    return queue;
  }
  [[nodiscard]] static bool ok(const std::optional<Response>& response) {
    return response && response->cqe.status() == nvme::kSuccess;
  }

  Reactor reactor;
  std::unique_ptr<Queue> admin;
  std::uint16_t cntlid{0xFFFF};
  nvme::IdentifyController id;
  nvme::Cap cap;
  std::uint32_t in_capsule_bytes{0};
  std::uint16_t granted{0};
  std::string trouble;

 private:
  bool fail(std::string what) {
    trouble = std::move(what);
    if (admin->closed && trouble.find(*admin->closed) == std::string::npos) trouble += "; " + *admin->closed;
    return false;
  }
  bool enable() {
    const auto capabilities = admin->call({.sqe = nvme::make_property_get(nvme::Property::cap)});
    if (!ok(capabilities)) return fail("reading CAP: " + told(capabilities));
    cap.raw = capabilities->cqe.result64();
    const std::uint32_t value = nvme::Cc::kEnable | nvme::Cc::kCssNvm | nvme::Cc::kEntrySizes;
    const auto set = admin->call({.sqe = nvme::make_property_set(nvme::Property::cc, value)});
    if (!ok(set)) return fail("writing CC: " + told(set));
    const Deadline deadline(monotonic_now(), kPatience);
    while (!deadline.passed(monotonic_now())) {
      const auto status = admin->call({.sqe = nvme::make_property_get(nvme::Property::csts)});
      if (!ok(status)) return fail("reading CSTS: " + told(status));
      if (nvme::Csts{status->cqe.dw0}.ready()) return true;
    }
    return fail("CSTS.RDY stays 0");
  }
  bool identify() {
    const iovec vector{&id, sizeof id};
    const auto cns = static_cast<std::uint8_t>(nvme::Cns::controller);
    const auto answer = admin->call({.sqe = nvme::make_identify(cns, 0),
                                     .direction = Direction::from_target,
                                     .data = std::span(&vector, 1)});
    if (!ok(answer)) return fail("Identify: " + told(answer));
    in_capsule_bytes = options_.in_capsule_bytes != 0 ? options_.in_capsule_bytes
                       : id.icdoff == 0               ? nvme::in_capsule_bytes(id)
                                                      : 0;
    return true;
  }
  bool set_queues(std::uint16_t queues) {
    const auto answer = admin->call({.sqe = nvme::make_set_queues(queues)});
    if (!ok(answer)) return fail("Set Features (Number of Queues): " + told(answer));
    granted = nvme::granted_queues(answer->cqe.dw0);
    return true;
  }

  const HostOptions options_;
};

inline constexpr std::uint8_t kWrite = 0x01;
inline constexpr std::uint8_t kRead = 0x02;

// A block command; `bytes` is a multiple of the block.
inline Command block(std::uint8_t opcode, std::span<const iovec> data, std::uint64_t lba,
                     std::uint32_t nsid = 1) {
  std::uint64_t bytes = 0;
  for (const iovec& vector : data)
    bytes += vector.iov_len;
  Command command;
  command.sqe.opcode = opcode;
  command.sqe.nsid = nsid;
  command.sqe.cdw10 = static_cast<std::uint32_t>(lba);
  command.sqe.cdw11 = static_cast<std::uint32_t>(lba >> 32U);
  command.sqe.cdw12 = static_cast<std::uint32_t>(bytes / kBlockBytes) - 1;  // 0's based
  command.direction = opcode == kWrite ? Direction::to_target : Direction::from_target;
  command.data = data;
  return command;
}

}  // namespace akv::lab
