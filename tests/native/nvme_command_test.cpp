// Byte-exact vectors of commands, completions and Identify structures.
#include "nvme/command.hpp"

#include <gtest/gtest.h>

#include <string>

#include "base/bytes.hpp"
#include "nvme/connect.hpp"
#include "nvme/identify.hpp"
#include "nvme/kv.hpp"
#include "nvme/registers.hpp"

namespace akv::nvme {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const auto byte : bytes) {
    out += kDigits[std::to_integer<unsigned>(byte) >> 4U];
    out += kDigits[std::to_integer<unsigned>(byte) & 15U];
  }
  return out;
}

KvKey key_of(std::string_view text) {
  return *make_kv_key(as_byte_span(text));
}

TEST(Command, KvStoreIsByteExact) {
  const KvCommand command{.opcode = KvOpcode::store,
                          .options = kStoreOnlyIfKeyIsNew,
                          .size = 0x200000,
                          .key = key_of("0123456789abcdef")};
  auto sqe = make_kv(command, 1, transport_sgl(0x200000));
  sqe.cid = 0x0102;
  EXPECT_EQ(hex(wire_bytes(sqe)),
            "01400201"
            "01000000"
            "30313233"
            "34353637"
            "0000000000000000"
            "0000000000000000"
            "00002000"
            "0000005a"
            "00002000"
            "10020000"
            "0000000000000000"
            "38396162"
            "63646566");
  const auto parsed = parse_kv(sqe);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->key, command.key);
  EXPECT_EQ(parsed->size, command.size);
  EXPECT_EQ(parsed->options, command.options);
}

TEST(Command, ShortKeysIgnoreTheBytesBehindThem) {
  auto sqe = make_kv({.opcode = KvOpcode::exist, .key = key_of("abcdefghij")}, 1, transport_sgl(0));
  sqe.cdw15 = 0xFFFFFFFF;
  EXPECT_EQ(parse_kv(sqe)->key, key_of("abcdefghij"));
  sqe.cdw11 = 17;
  EXPECT_FALSE(parse_kv(sqe));
  sqe.cdw11 = 0;
  EXPECT_EQ(parse_kv(sqe)->key.length, 0);
}

TEST(Command, ConnectIsByteExact) {
  const ConnectCommand command{.qid = 2, .sqsize = 127, .cattr = kConnectDisableSqFlow, .kato_ms = 5000};
  const auto sqe = make_connect(command);
  EXPECT_EQ(hex(wire_bytes(sqe)).substr(0, 16), "7f40000001000000");
  EXPECT_EQ(hex(wire_bytes(sqe)).substr(48),
            "0000000000000000"
            "00040000"
            "00000001"
            "00000200"
            "7f000400"
            "88130000"
            "000000000000000000000000");
  const auto parsed = parse_connect(sqe);
  EXPECT_EQ(parsed.qid, 2);
  EXPECT_EQ(parsed.sqsize, 127);
  EXPECT_EQ(parsed.cattr, kConnectDisableSqFlow);
  EXPECT_EQ(parsed.kato_ms, 5000U);
}

TEST(Command, ConnectResults) {
  EXPECT_EQ(parse_connect_result(0x00000042).cntlid, 0x42);
  EXPECT_FALSE(parse_connect_result(0x00000042).authentication);
  EXPECT_TRUE(parse_connect_result(0x00020042).authentication);
  // As the Linux target answers (seen): unknown subsystem, bad controller id, bad SQSIZE, bad queue id.
  EXPECT_EQ(connect_bad_data(offsetof(ConnectData, subnqn)), 0x10100U);
  EXPECT_EQ(connect_bad_data(offsetof(ConnectData, cntlid)), 0x10010U);
  EXPECT_EQ(connect_bad_data(offsetof(ConnectData, hostnqn)), 0x10200U);
  EXPECT_EQ(connect_bad_command(kConnectSqsizeOffset), 0x2CU);
  EXPECT_EQ(connect_bad_command(kConnectQidOffset), 0x2AU);
}

TEST(Command, NqnFieldsAreBounded) {
  ConnectData data;
  EXPECT_TRUE(set_nqn(data.subnqn, "nqn.2024-01.test:a"));
  EXPECT_EQ(get_nqn(data.subnqn), "nqn.2024-01.test:a");
  EXPECT_FALSE(set_nqn(data.subnqn, std::string(224, 'x')));
  EXPECT_TRUE(set_nqn(data.subnqn, std::string(223, 'x')));
  EXPECT_EQ(get_nqn(data.subnqn).size(), 223U);
  std::memset(data.subnqn, 'x', sizeof data.subnqn);
  EXPECT_EQ(get_nqn(data.subnqn), "");
}

TEST(Command, PropertiesCarryTheirSize) {
  const auto cap = parse_property(make_property_get(Property::cap));
  EXPECT_TRUE(cap.eight_bytes);
  EXPECT_EQ(cap.offset, 0U);
  const auto cc = parse_property(make_property_set(Property::cc, 0x460061));
  EXPECT_FALSE(cc.eight_bytes);
  EXPECT_EQ(cc.offset, 0x14U);
  EXPECT_EQ(cc.value, 0x460061U);
}

TEST(Command, CompletionStatusSkipsThePhaseBit) {
  Cqe cqe;
  cqe.set_status(dnr(kConnectInvalidParameters));
  EXPECT_EQ(cqe.status_phase, 0x8304);
  EXPECT_EQ(cqe.status(), 0x4182);
  EXPECT_EQ(status_code(cqe.status()), kConnectInvalidParameters);
  EXPECT_EQ(describe_status(cqe.status()), "connect invalid parameters (sct 1, sc 0x82, dnr)");
  EXPECT_EQ(describe_status(kKvKeyDoesNotExist), "key does not exist (sct 0, sc 0x87)");
  cqe.set_result64(0x1122334455667788U);
  EXPECT_EQ(cqe.dw0, 0x55667788U);
  EXPECT_EQ(cqe.result64(), 0x1122334455667788U);
}

TEST(Command, QueueCountsAreZeroBased) {
  EXPECT_EQ(make_set_queues(8).cdw11, 0x00070007U);
  EXPECT_EQ(make_set_queues(0).cdw11, 0U);
  EXPECT_EQ(granted_queues(0x007F0003), 4);
  EXPECT_EQ(granted_queues(0xFFFFFFFF), 0xFFFF);
}

TEST(Command, EventsLogPagesAndAbort) {
  const Sqe events = make_set_async_events(kOaesNamespaceAttribute);
  EXPECT_EQ(events.opcode, 0x09);
  EXPECT_EQ(events.cdw10, 0x0BU);
  EXPECT_EQ(events.cdw11, 0x100U);
  const Sqe page = make_get_log_page(0x04, 4096);
  EXPECT_EQ(page.opcode, 0x02);
  EXPECT_EQ(page.nsid, 0xFFFFFFFFU);
  EXPECT_EQ(page.cdw10, 0x03FF0004U);
  EXPECT_EQ(page.cdw11, 0U);
  EXPECT_EQ(make_get_log_page(0x02, 0x40000 + 4).cdw11, 1U);
  EXPECT_EQ(make_abort(3, 0x1234).cdw10, 0x12340003U);
  const AsyncEvent changed = parse_async_event(0x00040002);
  EXPECT_TRUE(changed.namespace_changed());
  EXPECT_EQ(changed.log_page, 4);
  EXPECT_FALSE(parse_async_event(0x00020201).namespace_changed());
}

TEST(Registers, CapabilitiesOfTheLinuxTarget) {
  const Cap cap{0x8200F0003FF};  // seen on kernel 6.1: CSS NVM and I/O command sets, MQES 1023
  EXPECT_EQ(cap.mqes(), 1023);
  EXPECT_TRUE(cap.io_command_sets());
  EXPECT_TRUE(cap.nvm_command_set());
  EXPECT_EQ(cap.min_page_bytes(), 4096U);
  EXPECT_EQ(cap.timeout_500ms(), 15);
  EXPECT_EQ(make_cap(1023, 15, Cap::kCssNvm | Cap::kCssIoCommandSets).raw, 0x8200F0103FFU);
}

TEST(Identify, InCapsuleBytes) {
  IdentifyController id;
  id.ioccsz = 1028;
  EXPECT_EQ(in_capsule_bytes(id), 16384U);
  id.ioccsz = 4;
  EXPECT_EQ(in_capsule_bytes(id), 0U);
  id.ioccsz = 0;
  EXPECT_EQ(in_capsule_bytes(id), 0U);
  id.ioccsz = 0xFFFFFFFF;
  EXPECT_EQ(in_capsule_bytes(id), 0xFFFFFFFFU);
}

TEST(Identify, PaddedText) {
  IdentifyController id;
  set_padded(id.sn, "L0P0");
  EXPECT_EQ(std::string_view(id.sn, 20), "L0P0                ");
  EXPECT_EQ(trimmed(id.sn), "L0P0");
  set_padded(id.sn, "");
  EXPECT_EQ(trimmed(id.sn), "");
}

}  // namespace
}  // namespace akv::nvme
