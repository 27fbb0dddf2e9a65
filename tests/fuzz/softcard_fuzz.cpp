// The software card against hostile hosts: up to three connections of one host that send anything. When they
// are gone the card has no connection, no controller and no memory of theirs.
#include <optional>
#include <vector>

#include "base/events.hpp"
#include "input.hpp"
#include "loopback.hpp"
#include "nvme/kv.hpp"
#include "pdu_wire.hpp"
#include "softcard/memory_store.hpp"
#include "softcard/target.hpp"

namespace akv::fuzz {
namespace {

constexpr const char* kNqn = "nqn.2024-01.org.akv:fuzz";

softcard::CardConfig config(std::uint8_t how) {
  softcard::CardConfig config;
  config.id = "xdp0";
  config.serial = "L0P0";
  config.nqn = kNqn;
  config.capacity = 1U << 20U;
  config.max_value_bytes = 64U << 10U;
  config.max_queues = 2;
  config.max_connections = 4;
  config.in_capsule_bytes = (how & 8U) != 0 ? 4096U : 128U << 10U;
  config.receive_bytes = (how & 1U) != 0 ? 64U << 10U : 1U << 20U;
  return config;
}

// One connection, as a host that knows the protocol and does not always keep to it.
class Host {
 public:
  explicit Host(std::uint16_t port) : wire_(connect_to(port)) {}

  void greet(std::uint8_t how) {
    nvme::IcReq request;
    request.dgst = how & 3U;
    request.hpda = static_cast<std::uint8_t>((how & 4U) != 0 ? 3 : 0);
    framing_ = {.hdgst = (how & 1U) != 0, .ddgst = (how & 2U) != 0};
    wire_.send(nvme::wire_bytes(request));
  }
  void connect(std::uint16_t qid, std::uint16_t cntlid) {
    nvme::ConnectData data;
    data.cntlid = qid == 0 ? nvme::kDynamicController : cntlid;
    static_cast<void>(nvme::set_nqn(data.subnqn, kNqn));
    static_cast<void>(nvme::set_nqn(data.hostnqn, "nqn.2024-01.org.akv:host"));
    capsule(nvme::make_connect({.qid = qid, .sqsize = 31, .kato_ms = 5000}), nvme::wire_bytes(data));
  }
  void enable() {
    capsule(nvme::make_property_set(nvme::Property::cc,
                                    nvme::Cc::kEnable | nvme::Cc::kCssAllCommandSets | nvme::Cc::kEntrySizes),
            {});
  }
  void key_value(Input& input) {
    const auto what = input.number<std::uint8_t>();
    constexpr std::array kOpcodes{nvme::KvOpcode::store, nvme::KvOpcode::retrieve, nvme::KvOpcode::list,
                                  nvme::KvOpcode::remove, nvme::KvOpcode::exist};
    nvme::KvCommand command{.opcode = kOpcodes[what % kOpcodes.size()],
                            .options = static_cast<std::uint8_t>(what / 8U % 8U)};
    command.size = input.number<std::uint16_t>() * ((what & 0x80U) != 0 ? 3U : 1U);
    command.key = *nvme::make_kv_key(std::array{static_cast<std::byte>(1 + what % 4U)});
    const bool store = command.opcode == nvme::KvOpcode::store;
    const bool in_capsule = store && command.size <= 4096 && (what & 0x40U) == 0;
    const std::vector<std::byte> value(in_capsule ? command.size : 0, static_cast<std::byte>(what));
    const auto sgl = in_capsule ? nvme::in_capsule_sgl(command.size) : nvme::transport_sgl(command.size);
    capsule(nvme::make_kv(command, softcard::kNamespaceId, sgl), value);
  }
  // Any command with data in its capsule, which may be longer than what goes out of it, or than allowed.
  void large_capsule(Input& input) {
    const auto what = input.number<std::uint8_t>();
    const std::uint32_t size = input.number<std::uint16_t>() * 3U;
    nvme::KvCommand command{.opcode = (what & 7U) != 0 ? nvme::KvOpcode::store : nvme::KvOpcode::exist};
    command.size = (what & 8U) != 0 ? size : input.number<std::uint16_t>();
    command.key = *nvme::make_kv_key(std::array{static_cast<std::byte>(1 + what % 4U)});
    const auto sgl = (what & 0x10U) != 0 ? nvme::in_capsule_sgl(size) : nvme::transport_sgl(size);
    capsule(nvme::make_kv(command, softcard::kNamespaceId, sgl), std::vector<std::byte>(size));
  }
  void command(Input& input) {
    std::array<std::byte, sizeof(nvme::Sqe)> raw{};
    const auto sqe = nvme::make_identify(input.number<std::uint8_t>(), input.number<std::uint8_t>() % 3U, 1);
    nvme::write_wire(raw, sqe);
    const std::size_t at = input.number<std::uint8_t>() % raw.size();
    const auto patch = input.bytes(std::min<std::size_t>(input.number<std::uint8_t>(), raw.size() - at));
    std::ranges::copy(patch, raw.begin() + static_cast<long>(at));
    capsule(nvme::read_wire<nvme::Sqe>(raw), {});
  }
  // Data for an R2T; tags are small numbers.
  void data(Input& input) {
    nvme::DataPdu pdu;
    pdu.common.flags = input.number<std::uint8_t>() & nvme::kPduLast;
    pdu.ttag = input.number<std::uint8_t>() % 8U;
    pdu.cccid = input.number<std::uint8_t>() % 16U;
    pdu.datao = input.number<std::uint16_t>();
    const std::vector<std::byte> bytes(input.number<std::uint16_t>());
    pdu.datal = static_cast<std::uint32_t>(bytes.size());
    send_pdu(wire_, pdu, bytes, framing_);
  }
  void raw(Input& input) { wire_.send(input.bytes(input.number<std::uint16_t>() % 2048U)); }
  void drain() {
    wire_.receive([](std::span<const std::byte>) {});
  }

 private:
  void capsule(nvme::Sqe sqe, std::span<const std::byte> data) {
    sqe.cid = ++last_cid_ % 16U;
    send_pdu(wire_, nvme::CapsuleCmd{.sqe = sqe}, data, framing_);
  }

  Wire wire_;
  nvme::Framing framing_;
  std::uint16_t last_cid_{0};
};

class Run {
 public:
  explicit Run(std::uint8_t how)
      : config_(config(how)),
        store_(config_.capacity, config_.max_value_bytes),
        access_(store_),
        target_(reactor_, config_, access_, faults_) {
    target_.listen(softcard::parse_endpoint("127.0.0.1:0"));
    if ((how & 2U) != 0) return;
    for (std::uint16_t qid = 0; qid < 2; ++qid)
      set_up(qid, how);
  }

  void step(Input& input) {
    const auto what = input.number<std::uint8_t>();
    auto& host = hosts_[what / 16U % hosts_.size()];
    if (!host) {
      host.emplace(target_.endpoint().port);
      turn();
    }
    switch (what % 16) {
      case 0:
        return host->raw(input);
      case 1:
        host->greet(input.number<std::uint8_t>());
        break;
      case 2:
        host->connect(input.number<std::uint8_t>() % 4U, input.number<std::uint8_t>());
        break;
      case 3:
        host->enable();
        break;
      case 4:
        host->command(input);
        break;
      case 5:
        host.reset();
        break;
      case 6:
        host->data(input);
        break;
      case 7:
        host->large_capsule(input);
        break;
      default:
        host->key_value(input);
    }
    turn();
  }

  void finish() {
    for (auto& host : hosts_)
      host.reset();
    for (int i = 0; i < 1000 && target_.connections() != 0; ++i)
      reactor_.run_once(std::chrono::milliseconds(1));
    check(target_.connections() == 0, "no connection is left");
    check(target_.controllers() == 0, "no controller is left");
    check(target_.budget().used() == 0, "no memory is left");
    check(store_.stats().bytes <= config_.capacity, "the store keeps to its capacity");
  }

 private:
  void set_up(std::uint16_t qid, std::uint8_t how) {
    auto& host = hosts_[qid];
    host.emplace(target_.endpoint().port);
    host->greet(how >> 4U);
    host->connect(qid, 1);
    if (qid == 0) host->enable();
    turn();
  }
  void turn() {
    for (int i = 0; i < 2; ++i)
      reactor_.run_once(std::chrono::milliseconds(0));
    const std::uint64_t most = config_.max_value_bytes + config_.in_capsule_bytes;
    check(target_.budget().used() <= config_.receive_bytes + most * config_.max_connections,
          "memory of values being received is bounded");
    for (auto& host : hosts_) {
      if (host) host->drain();
    }
  }

  Reactor reactor_;
  softcard::CardConfig config_;
  softcard::MemoryStore store_;
  softcard::Faults faults_;
  softcard::DirectAccess access_;
  softcard::Target target_;
  std::array<std::optional<Host>, 3> hosts_;
};

}  // namespace
}  // namespace akv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static const auto said_before = akv::set_event_sink(std::make_shared<akv::EventQueue>(1));
  akv::fuzz::Input input(data, size);
  akv::fuzz::Run run(input.number<std::uint8_t>());
  while (!input.empty())
    run.step(input);
  run.finish();
  return 0;
}
