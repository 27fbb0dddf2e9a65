// NVMe structures from the other side: PDU headers in both roles, KV commands, Connect.
#include "input.hpp"
#include "nvme/connect.hpp"
#include "nvme/kv.hpp"
#include "nvme/pdu.hpp"

namespace akv::fuzz {
namespace {

void parse_header(Input& input) {
  const auto how = input.number<std::uint8_t>();
  const nvme::ReceiveRules rules{.role = (how & 1U) != 0 ? nvme::Role::host : nvme::Role::controller,
                                 .framing = {.hdgst = (how & 2U) != 0,
                                             .ddgst = (how & 4U) != 0,
                                             .pda = static_cast<std::uint8_t>(how >> 3U)},
                                 .max_capsule_data = 16'384,
                                 .max_data = 1U << 20U};
  const auto bytes = input.rest();
  const auto result = nvme::parse_pdu(bytes, rules);
  using Kind = nvme::ParseResult::Kind;
  if (result.kind == Kind::need_more)
    check(result.need > bytes.size() && result.need <= 255, "asks for more");
  if (result.kind != Kind::header) return;
  const auto& header = result.header;
  check(header.prefix <= bytes.size() && header.prefix >= header.hlen, "the header is there");
  check(header.data <= std::max(rules.max_data, rules.max_capsule_data), "data is bounded");
  const std::uint64_t whole = std::uint64_t{header.prefix} + header.data + (header.has_ddgst ? 4U : 0U);
  check(header.plen == whole, "the parts are the PDU");
}

void parse_command(Input& input) {
  std::array<std::byte, sizeof(nvme::Sqe)> raw{};
  std::ranges::copy(input.bytes(raw.size()), raw.begin());
  const auto sqe = nvme::read_wire<nvme::Sqe>(raw);
  static_cast<void>(nvme::parse_connect(sqe));
  static_cast<void>(nvme::parse_property(sqe));
  if (const auto command = nvme::parse_kv(sqe)) {
    check(command->key.length <= nvme::kKvKeyMaxBytes, "a key has at most 16 bytes");
    for (std::size_t i = command->key.length; i < nvme::kKvKeyMaxBytes; ++i)
      check(command->key.bytes[i] == std::byte{0}, "a key is zero behind its length");
  }
}

}  // namespace
}  // namespace akv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  akv::fuzz::Input input(data, size);
  const bool header = input.number<std::uint8_t>() % 2 == 0;
  header ? akv::fuzz::parse_header(input) : akv::fuzz::parse_command(input);
  return 0;
}
