// Namespace Identification Descriptors (NVMe Base 2.0, 5.17.2.3; CNS 03h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "nvme/connect.hpp"
#include "nvme/identify.hpp"

namespace akv::nvme {

// What a list of descriptors says of one namespace; what it does not say is empty.
struct NamespaceIdentifiers {
  std::optional<std::uint8_t> csi;
  std::optional<Uuid> uuid;
  std::optional<std::array<std::uint8_t, 16>> nguid;
};

// Reads descriptors up to the end, a zero length, or one that reaches beyond the list.
[[nodiscard]] inline NamespaceIdentifiers parse_descriptors(std::span<const std::byte> list) noexcept {
  NamespaceIdentifiers found;
  while (list.size() >= kDescriptorHeaderBytes) {
    const auto type = static_cast<IdentifierType>(list[0]);
    const auto length = std::to_integer<std::size_t>(list[1]);
    list = list.subspan(kDescriptorHeaderBytes);
    if (length == 0 || length > list.size()) break;
    if (type == IdentifierType::csi) found.csi = std::to_integer<std::uint8_t>(list[0]);
    if (type == IdentifierType::uuid && length == sizeof(Uuid)) {
      found.uuid.emplace();
      std::memcpy(found.uuid->data(), list.data(), length);
    }
    if (type == IdentifierType::nguid && length == 16) {
      found.nguid.emplace();
      std::memcpy(found.nguid->data(), list.data(), length);
    }
    list = list.subspan(length);
  }
  return found;
}

}  // namespace akv::nvme
