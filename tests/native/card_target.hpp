// A KV card for tests that is spoken to over sockets and misbehaves on request.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "card/card_set.hpp"
#include "card/uuid.hpp"
#include "fabric_support.hpp"
#include "nvme/connect.hpp"
#include "nvme/identify.hpp"
#include "nvme/kv.hpp"
#include "nvme/registers.hpp"

namespace akv::card::test {

inline constexpr const char* kUuid = "11112222-3333-4444-5555-666677778888";

// What a target does; everything may change while it runs.
struct Behaviour {
  std::string serial{"CARD0"};
  bool kv_namespace{true};
  bool io_command_sets{true};
  std::uint16_t granted_queues{64};       // told by Set Features
  std::uint16_t refused_from_queue{999};  // Connect of this queue id and above is refused
  bool silent_io{false};                  // takes I/O commands and holds their answers back
  bool silent_admin{false};               // keep-alives stay unanswered
  bool success_flag{false};               // ends retrieves with C2HData's SUCCESS flag
  bool lying_size{false};                 // retrieves tell a size that was not sent
  bool wrong_digest{false};               // of a retrieve's data
  std::size_t cut_after{0};               // not 0: bytes of a retrieve's data after which the connection ends
  bool stuck_after_half{false};           // a retrieve's second half comes when this is over
  std::uint32_t value_max{1U << 20U};
  std::uint32_t ready_polls{2};            // Property Gets until CSTS.RDY
  std::uint32_t csts{nvme::Csts::kReady};  // once it is ready
  std::uint32_t oaes{0};
  std::uint8_t acl{3};
  std::uint32_t event{0};     // DW0 that each Asynchronous Event Request is answered with; 0: none is
  bool silent_aborts{false};  // Abort stays unanswered and without effect
};

class CardTarget {
 public:
  explicit CardTarget(Behaviour behaviour = {})
      : behaviour_(std::move(behaviour)), target_([this](fabric::test::Peer& peer) { serve(peer); }) {}
  ~CardTarget() {
    change([](Behaviour& now) { now.silent_io = now.stuck_after_half = false; });
    hang_up();
    target_.stop();
  }

  [[nodiscard]] CardPath path() const { return {"tcp", target_.host(), target_.port()}; }
  [[nodiscard]] CardSpec spec(const std::string& serial = "CARD0") const {
    return {serial, "nqn.2024-01.io.akv:test", "", {path()}};
  }
  template <typename Change>
  void change(Change make) {
    const std::lock_guard lock(mutex_);
    make(behaviour_);
    changed_.notify_all();
  }
  // Ends all connections; new ones are taken as before. How many will have ended when these have.
  std::size_t hang_up() {
    const std::lock_guard lock(mutex_);
    for (fabric::test::Peer* const peer : peers_)
      peer->shutdown();
    return ended_ + peers_.size();
  }
  // Whether so many connections have ended, within twenty seconds.
  [[nodiscard]] bool wait_ended(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return ended_ >= count; });
  }
  [[nodiscard]] std::size_t stored_values() {
    const std::lock_guard lock(mutex_);
    return values_.size();
  }
  // Whether it has sent so many R2Ts, within twenty seconds.
  [[nodiscard]] bool wait_asked(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return asked_ >= count; });
  }
  // Answers that silent_io holds back.
  [[nodiscard]] std::size_t held() {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  [[nodiscard]] std::size_t connects() const noexcept { return connects_; }
  // Admin commands of this kind so far; Set Features by feature too.
  [[nodiscard]] std::size_t count(nvme::AdminOpcode opcode) {
    const std::lock_guard lock(mutex_);
    return admin_commands_[opcode];
  }
  [[nodiscard]] std::optional<std::uint32_t> feature(nvme::Feature feature) {
    const std::lock_guard lock(mutex_);
    const auto found = features_.find(feature);
    return found == features_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  using Peer = fabric::test::Peer;

  [[nodiscard]] Behaviour behaviour() {
    const std::lock_guard lock(mutex_);
    return behaviour_;
  }

  void serve(Peer& peer) {
    {
      const std::lock_guard lock(mutex_);
      peers_.insert(&peer);
    }
    peer.greet();
    std::uint32_t polls = 0;
    while (peer.ok()) {
      const auto pdu = peer.receive();
      if (!peer.ok() || pdu.header.type != nvme::PduType::capsule_cmd) break;
      const auto sqe = pdu.as<nvme::CapsuleCmd>().sqe;
      if (sqe.opcode == nvme::kFabricsOpcode) {
        on_fabrics(peer, sqe, polls);
      } else if (peer.queue() == 0) {
        on_admin(peer, sqe);
      } else {
        on_io(peer, sqe, pdu.data);
      }
    }
    const std::lock_guard lock(mutex_);
    peers_.erase(&peer);
    ++ended_;
    changed_.notify_all();
  }

  void on_fabrics(Peer& peer, const nvme::Sqe& sqe, std::uint32_t& polls) {
    const auto type = static_cast<nvme::FabricsType>(sqe.nsid & 0xFFU);
    const Behaviour now = behaviour();
    if (type == nvme::FabricsType::connect) {
      ++connects_;
      peer.set_queue(nvme::parse_connect(sqe).qid);
      const bool refused = peer.queue() >= now.refused_from_queue;
      return peer.respond(sqe.cid, refused ? nvme::kConnectInvalidParameters : nvme::kSuccess, 1);
    }
    if (type == nvme::FabricsType::property_set) return peer.respond(sqe.cid);
    if (nvme::parse_property(sqe).eight_bytes) {
      const auto css = now.io_command_sets ? nvme::Cap::kCssIoCommandSets : nvme::Cap::kCssNvm;
      return peer.respond(sqe.cid, nvme::kSuccess, nvme::make_cap(127, 10, css).raw);
    }
    peer.respond(sqe.cid, nvme::kSuccess, ++polls >= now.ready_polls ? now.csts : 0);
  }

  void on_admin(Peer& peer, const nvme::Sqe& sqe) {
    const Behaviour now = behaviour();
    const auto opcode = static_cast<nvme::AdminOpcode>(sqe.opcode);
    {
      const std::lock_guard lock(mutex_);
      ++admin_commands_[opcode];
      if (opcode == nvme::AdminOpcode::set_features) features_[nvme::Feature(sqe.cdw10)] = sqe.cdw11;
    }
    switch (opcode) {
      case nvme::AdminOpcode::identify:
        return identify(peer, sqe, now);
      case nvme::AdminOpcode::set_features: {
        const std::uint32_t zero_based = now.granted_queues - 1U;
        return peer.respond(sqe.cid, nvme::kSuccess, zero_based | (zero_based << 16U));
      }
      case nvme::AdminOpcode::keep_alive:
        if (!now.silent_admin) peer.respond(sqe.cid);
        return;
      case nvme::AdminOpcode::async_event_request:
        if (now.event != 0) peer.respond(sqe.cid, nvme::kSuccess, now.event);
        return;
      case nvme::AdminOpcode::get_log_page: {
        const std::vector<std::byte> page(sqe.sgl.length);
        peer.send_data(sqe.cid, 0, page, nvme::kPduLast);
        return peer.respond(sqe.cid);
      }
      case nvme::AdminOpcode::abort:
        return abort(peer, sqe, now);
      default:
        return peer.respond(sqe.cid, nvme::kInvalidOpcode);
    }
  }

  void abort(Peer& peer, const nvme::Sqe& sqe, const Behaviour& now) {
    if (now.silent_aborts) return;
    const std::lock_guard lock(mutex_);
    aborted_.insert(static_cast<std::uint16_t>(sqe.cdw10 >> 16U));
    changed_.notify_all();
    peer.respond(sqe.cid);
  }

  template <nvme::WireStruct T>
  static void send_structure(Peer& peer, std::uint16_t cid, const T& structure) {
    peer.send_data(cid, 0, nvme::wire_bytes(structure), nvme::kPduLast);
    peer.respond(cid);
  }

  void identify(Peer& peer, const nvme::Sqe& sqe, const Behaviour& now) {
    switch (static_cast<nvme::Cns>(sqe.cdw10 & 0xFFU)) {
      case nvme::Cns::controller: {
        nvme::IdentifyController id;
        nvme::set_padded(id.sn, now.serial);
        id.ioccsz = (sizeof(nvme::Sqe) + 8192) / 16;
        id.mdts = 0;
        id.oaes = now.oaes;
        id.acl = now.acl;
        return send_structure(peer, sqe.cid, id);
      }
      case nvme::Cns::active_namespaces:
      case nvme::Cns::active_namespaces_command_set: {
        nvme::NamespaceList list;
        if (now.kv_namespace) list.nsid[0] = 3;
        return send_structure(peer, sqe.cid, list);
      }
      case nvme::Cns::namespace_descriptors: {
        struct {
          std::uint8_t bytes[nvme::kIdentifyBytes]{};
        } list;
        const std::uint8_t csi[] = {4, 1, 0, 0, nvme::kCsiKeyValue};
        const std::uint8_t uuid[] = {3, 16, 0, 0};
        std::memcpy(list.bytes, csi, sizeof csi);
        std::memcpy(list.bytes + sizeof csi, uuid, sizeof uuid);
        std::memcpy(list.bytes + sizeof csi + sizeof uuid, parse_uuid(kUuid)->data(), 16);
        return send_structure(peer, sqe.cid, list);
      }
      default: {
        nvme::IdentifyKvNamespace id;
        id.formats[0] = {.key_max_bytes = 16, .value_max_bytes = now.value_max};
        return send_structure(peer, sqe.cid, id);
      }
    }
  }

  void on_io(Peer& peer, const nvme::Sqe& sqe, const std::vector<std::byte>& in_capsule) {
    const auto command = *nvme::parse_kv(sqe);
    std::vector<std::byte> value = in_capsule;
    if (command.opcode == nvme::KvOpcode::store && sqe.sgl.identifier == nvme::kSglTransport &&
        command.size > 0) {
      peer.send_r2t(sqe.cid, 1, 0, command.size);
      {
        const std::lock_guard lock(mutex_);
        ++asked_;
        changed_.notify_all();
      }
      while (value.size() < command.size && peer.ok()) {
        const auto data = peer.receive().data;
        value.insert(value.end(), data.begin(), data.end());
      }
      if (value.size() < command.size) return;  // the connection ended before
    }
    {
      std::unique_lock lock(mutex_);
      ++held_;
      changed_.wait_for(lock, std::chrono::seconds(20),
                        [&] { return !behaviour_.silent_io || aborted_.contains(sqe.cid); });
      --held_;
      if (aborted_.erase(sqe.cid) > 0) return peer.respond(sqe.cid, nvme::kAbortRequested);
    }
    execute(peer, sqe.cid, command, std::move(value));
  }

  void execute(Peer& peer, std::uint16_t cid, const nvme::KvCommand& command, std::vector<std::byte> value) {
    std::unique_lock lock(mutex_);
    const auto found = values_.find(command.key);
    if (command.opcode == nvme::KvOpcode::store) {
      values_[command.key] = std::move(value);
      return peer.respond(cid);
    }
    if (found == values_.end()) return peer.respond(cid, nvme::dnr(nvme::kKvKeyDoesNotExist));
    if (command.opcode == nvme::KvOpcode::remove) values_.erase(found);
    if (command.opcode != nvme::KvOpcode::retrieve) return peer.respond(cid);
    const std::vector<std::byte> stored = found->second;
    const Behaviour now = behaviour_;
    lock.unlock();
    const auto sent = std::span(stored).first(std::min<std::size_t>(stored.size(), command.size));
    if (now.cut_after != 0) return cut(peer, cid, sent, now.cut_after);
    const unsigned success = now.success_flag ? nvme::kPduDataSuccess : 0U;
    if (!sent.empty()) send_value(peer, cid, sent, static_cast<std::uint8_t>(nvme::kPduLast | success));
    if (now.success_flag) return;
    peer.respond(cid, nvme::kSuccess, stored.size() + (now.lying_size ? 100 : 0));
  }

  static nvme::DataPdu data_pdu(std::uint16_t cid, std::span<const std::byte> data, std::uint8_t flags) {
    nvme::DataPdu pdu;
    pdu.common.type = static_cast<std::uint8_t>(nvme::PduType::c2h_data);
    pdu.common.flags = flags;
    pdu.cccid = cid;
    pdu.datal = static_cast<std::uint32_t>(data.size());
    return pdu;
  }

  static void cut(Peer& peer, std::uint16_t cid, std::span<const std::byte> data, std::size_t after) {
    const auto bytes = peer.encode(data_pdu(cid, data, nvme::kPduLast), data);
    peer.send_bytes(std::span(bytes).first(std::min(bytes.size(), after)));
    peer.shutdown();
  }

  void send_value(Peer& peer, std::uint16_t cid, std::span<const std::byte> data, std::uint8_t flags) {
    auto bytes = peer.encode(data_pdu(cid, data, flags), data);
    if (behaviour().wrong_digest) bytes.back() ^= std::byte{1};
    peer.send_bytes(std::span(bytes).first(bytes.size() / 2));
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !behaviour_.stuck_after_half; });
    }
    peer.send_bytes(std::span(bytes).subspan(bytes.size() / 2));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Behaviour behaviour_;
  std::map<nvme::KvKey, std::vector<std::byte>> values_;
  std::set<Peer*> peers_;
  std::size_t held_{0};
  std::size_t asked_{0};
  std::size_t ended_{0};
  std::map<nvme::AdminOpcode, std::size_t> admin_commands_;
  std::map<nvme::Feature, std::uint32_t> features_;
  std::set<std::uint16_t> aborted_;
  std::atomic<std::size_t> connects_{0};
  fabric::test::ScriptedTarget target_;
};

}  // namespace akv::card::test
