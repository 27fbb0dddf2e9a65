#include "nvme/kv.hpp"

namespace akv::nvme {
namespace {

constexpr std::size_t kKeyHalf = 8;  // bytes in CDW2-3; the rest is in CDW14-15

void store_key(Sqe& sqe, const KvKey& key) {
  std::memcpy(&sqe.cdw2, key.bytes.data(), 4);
  std::memcpy(&sqe.cdw3, key.bytes.data() + 4, 4);
  std::memcpy(&sqe.cdw14, key.bytes.data() + kKeyHalf, 4);
  std::memcpy(&sqe.cdw15, key.bytes.data() + kKeyHalf + 4, 4);
}

KvKey load_key(const Sqe& sqe, std::uint8_t length) {
  KvKey key;
  std::memcpy(key.bytes.data(), &sqe.cdw2, 4);
  std::memcpy(key.bytes.data() + 4, &sqe.cdw3, 4);
  std::memcpy(key.bytes.data() + kKeyHalf, &sqe.cdw14, 4);
  std::memcpy(key.bytes.data() + kKeyHalf + 4, &sqe.cdw15, 4);
  std::fill(key.bytes.begin() + length, key.bytes.end(), std::byte{0});
  key.length = length;
  return key;
}

}  // namespace

std::optional<KvKey> make_kv_key(std::span<const std::byte> bytes) {
  if (bytes.size() > kKvKeyMaxBytes) return std::nullopt;
  KvKey key;
  std::copy(bytes.begin(), bytes.end(), key.bytes.begin());
  key.length = static_cast<std::uint8_t>(bytes.size());
  return key;
}

Sqe make_kv(const KvCommand& command, std::uint32_t nsid, const SglDescriptor& sgl) {
  Sqe sqe;
  sqe.opcode = static_cast<std::uint8_t>(command.opcode);
  sqe.nsid = nsid;
  sqe.sgl = sgl;
  sqe.cdw10 = command.size;
  sqe.cdw11 = command.key.length | (static_cast<std::uint32_t>(command.options) << 8U);
  store_key(sqe, command.key);
  return sqe;
}

std::optional<KvCommand> parse_kv(const Sqe& sqe) {
  const auto length = static_cast<std::uint8_t>(sqe.cdw11);
  if (length > kKvKeyMaxBytes) return std::nullopt;
  return KvCommand{.opcode = static_cast<KvOpcode>(sqe.opcode),
                   .options = static_cast<std::uint8_t>(sqe.cdw11 >> 8U),
                   .size = sqe.cdw10,
                   .key = load_key(sqe, length)};
}

}  // namespace akv::nvme
