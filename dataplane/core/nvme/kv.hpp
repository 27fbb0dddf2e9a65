// Key Value Command Set (NVMe KV 1.0, 3.2): a key of 1 to 16 bytes lies in CDW2-3 and CDW14-15.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "nvme/command.hpp"

namespace akv::nvme {

inline constexpr std::size_t kKvKeyMaxBytes = 16;

struct KvKey {
  std::array<std::byte, kKvKeyMaxBytes> bytes{};  // zero behind `length`
  std::uint8_t length{0};

  [[nodiscard]] std::span<const std::byte> view() const noexcept { return {bytes.data(), length}; }
  friend bool operator==(const KvKey&, const KvKey&) = default;
  friend auto operator<=>(const KvKey&, const KvKey&) = default;
};

// Store options, CDW11 bits 15:8 (3.2.5).
inline constexpr std::uint8_t kStoreOnlyIfKeyExists = 0x01;
inline constexpr std::uint8_t kStoreOnlyIfKeyIsNew = 0x02;
inline constexpr std::uint8_t kStoreNoCompression = 0x04;

struct KvCommand {
  KvOpcode opcode{KvOpcode::exist};
  std::uint8_t options{0};
  std::uint32_t size{0};  // bytes of the value (store) or of the host's buffer (retrieve, list); else 0
  KvKey key{};
};

// Key of 1 to 16 bytes (0 to 16 for list). nullopt for another length.
[[nodiscard]] std::optional<KvKey> make_kv_key(std::span<const std::byte> bytes);

// The command without its cid; `sgl` as the transport chose (zero-length transport SGL where no data moves).
[[nodiscard]] Sqe make_kv(const KvCommand& command, std::uint32_t nsid, const SglDescriptor& sgl);

// nullopt when the key length in CDW11 is over 16; a length of 0 is left to the command's own rule.
[[nodiscard]] std::optional<KvCommand> parse_kv(const Sqe& sqe);

// Result of List (3.2.2): NRK u32, then for each key a u16 length, the key, zeros up to a multiple of 4
// bytes.
inline constexpr std::size_t kListHeaderBytes = 4;
[[nodiscard]] constexpr std::size_t list_entry_bytes(std::size_t key_bytes) noexcept {
  return (2 + key_bytes + 3) & ~std::size_t{3};
}

}  // namespace akv::nvme
