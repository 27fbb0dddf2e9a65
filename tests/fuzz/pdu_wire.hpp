// One NVMe/TCP PDU from the fuzzer's side, with the digests that its connection has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/crc32c.hpp"
#include "loopback.hpp"
#include "nvme/pdu.hpp"

namespace akv::fuzz {

template <nvme::WireStruct T>
void send_pdu(Wire& wire, const T& pdu, std::span<const std::byte> data, const nvme::Framing& framing) {
  std::array<std::byte, 256> head{};
  const auto size = nvme::encode_pdu(std::span(head), pdu, static_cast<std::uint32_t>(data.size()), framing);
  wire.send(std::span(head).first(size));
  wire.send(data);
  if (!framing.ddgst || data.empty()) return;
  const std::uint32_t digest = crc32c(data);
  wire.send(nvme::wire_bytes(digest));
}

}  // namespace akv::fuzz
