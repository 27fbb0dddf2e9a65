// The NVMe/TCP initiator against a hostile target. Each command is answered at most once, nothing is written
// outside its buffer (the sanitizer sees that) or after its answer, and the connection ends once.
#include <map>
#include <vector>

#include "fabric/tcp_queue_pair.hpp"
#include "input.hpp"
#include "loopback.hpp"
#include "nvme/kv.hpp"
#include "pdu_wire.hpp"

namespace akv::fuzz {
namespace {

constexpr std::size_t kBuffer = 20'000;

class Host final : public fabric::QueuePairClient {
 public:
  explicit Host(const fabric::TcpQueuePairConfig& config) : queue_pair(reactor_, config, *this) {}

  void turn(int times) {
    for (int i = 0; i < times; ++i)
      reactor_.run_once(std::chrono::milliseconds(0));
  }
  void submit(fabric::Direction direction) {
    if (!open || closed || outstanding.size() >= 16) return;
    const std::uint32_t tag = ++last_tag_;
    auto& buffer = outstanding[tag];
    buffer.assign(kBuffer, std::byte{0xA5});
    const std::array<iovec, 2> vectors{iovec{buffer.data(), 64}, iovec{buffer.data() + 64, kBuffer - 64}};
    fabric::Command command{.sqe = {.opcode = 2}, .direction = direction};
    if (direction != fabric::Direction::none) command.data = vectors;
    if (!queue_pair.submit(command, tag)) outstanding.erase(tag);
    queue_pair.flush();
  }

  bool open{false};
  bool closed{false};
  std::map<std::uint32_t, std::vector<std::byte>> outstanding;

 private:
  void on_open() noexcept override {
    check(!open && !closed, "opened once");
    open = true;
  }
  void on_arrived(std::uint32_t tag, std::uint32_t bytes) noexcept override {
    check(!closed && outstanding.contains(tag), "data arrives for an outstanding command");
    check(bytes <= kBuffer, "no more than the buffer arrives");
  }
  void on_response(std::uint32_t tag, const fabric::Response& response) noexcept override {
    check(!closed, "no response after the end");
    check(response.received <= kBuffer, "no more than the buffer was received");
    check(outstanding.erase(tag) == 1, "each command is answered once");
  }
  void on_closed(fabric::Ending /*how*/, const std::string& reason) noexcept override {
    check(!closed && !reason.empty(), "closed once, and for a reason");
    closed = true;
    outstanding.clear();
  }

  Reactor reactor_;
  std::uint32_t last_tag_{0};

 public:
  fabric::TcpQueuePair queue_pair;
};

// Sends PDUs of every kind, mostly about commands that exist.
class Target {
 public:
  Target(Wire wire, std::uint8_t digests) noexcept : wire_(std::move(wire)) {
    framing_ = {.hdgst = (digests & 1U) != 0, .ddgst = (digests & 2U) != 0};
  }

  void greet() {
    nvme::IcResp response;
    response.maxh2cdata = 8192;
    response.dgst = static_cast<std::uint8_t>((framing_.hdgst ? nvme::kDigestHeader : 0U) |
                                              (framing_.ddgst ? nvme::kDigestData : 0U));
    wire_.send(nvme::wire_bytes(response));
  }
  void step(Input& input, std::uint8_t what) {
    wire_.receive([this](std::span<const std::byte> bytes) { learn(bytes); });
    const std::uint16_t cid = cids_.empty() ? what : cids_[what / 8U % cids_.size()];
    switch (what % 8) {
      case 0:
        return wire_.send(input.bytes(input.number<std::uint16_t>() % 2048U));
      case 1:
      case 2:
        return data(input, cid);
      case 3:
        return r2t(input, cid);
      case 4: {
        nvme::CapsuleResp response;
        response.cqe.cid = cid;
        response.cqe.status_phase = input.number<std::uint8_t>();
        return send_pdu(wire_, response, {}, framing_);
      }
      default:
        return;
    }
  }

 private:
  // Command ids of whatever looks like a capsule; a fuzzer's target need not parse all.
  void learn(std::span<const std::byte> bytes) {
    if (bytes.size() < sizeof(nvme::CapsuleCmd) || bytes[0] != std::byte{0x04}) return;
    cids_.push_back(nvme::read_wire<nvme::CapsuleCmd>(bytes).sqe.cid);
  }
  void data(Input& input, std::uint16_t cid) {
    nvme::DataPdu pdu;
    pdu.common.type = static_cast<std::uint8_t>(nvme::PduType::c2h_data);
    pdu.common.flags = input.number<std::uint8_t>() & 0x0CU;
    pdu.cccid = cid;
    const auto at = input.number<std::uint16_t>();
    auto& offset = sent_[cid];
    pdu.datao = at % 4U == 0 ? at : offset;
    const auto bytes = input.bytes((1U + input.number<std::uint16_t>() % 1024U) * 4U);
    pdu.datal = static_cast<std::uint32_t>(bytes.size());
    offset += pdu.datal;
    send_pdu(wire_, pdu, bytes, framing_);
  }
  void r2t(Input& input, std::uint16_t cid) {
    nvme::R2t pdu;
    pdu.cccid = cid;
    pdu.ttag = input.number<std::uint8_t>();
    pdu.r2to = input.number<std::uint16_t>();
    pdu.r2tl = input.number<std::uint16_t>();
    auto& granted = granted_[cid];
    if (pdu.ttag % 4U != 0) pdu.r2to = granted;
    granted += pdu.r2tl;
    send_pdu(wire_, pdu, {}, framing_);
  }

  Wire wire_;
  nvme::Framing framing_;
  std::vector<std::uint16_t> cids_;
  std::map<std::uint16_t, std::uint32_t> sent_;
  std::map<std::uint16_t, std::uint32_t> granted_;
};

void run(Input& input) {
  static const LoopbackListener listener;
  const auto how = input.number<std::uint8_t>();
  const auto policy = (how & 4U) != 0 ? fabric::DigestPolicy::prefer : fabric::DigestPolicy::off;
  Host host({.address = {"127.0.0.1", std::to_string(listener.port())},
             .in_capsule_bytes = (how & 8U) != 0 ? 8192U : 0U,
             .header_digest = policy,
             .data_digest = policy,
             .hpda = static_cast<std::uint8_t>((how & 16U) != 0 ? 7 : 0)});
  host.queue_pair.start();
  Target target(listener.accept(), (how & 4U) != 0 ? how & 3U : 0);
  host.turn(2);
  if ((how & 32U) == 0) target.greet();
  while (!input.empty() && !host.closed) {
    const auto what = input.number<std::uint8_t>();
    if (what % 8U == 7) host.submit(static_cast<fabric::Direction>(what / 8U % 3U));
    target.step(input, what);
    host.turn(2);
  }
  host.queue_pair.close("the end");
  check(host.closed && host.outstanding.empty(), "the connection has ended");
}

}  // namespace
}  // namespace akv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  akv::fuzz::Input input(data, size);
  akv::fuzz::run(input);
  return 0;
}
