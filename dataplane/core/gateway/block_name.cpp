#include "gateway/block_name.hpp"

#include <sodium.h>

#include "base/bytes.hpp"

namespace akv::gateway {

static_assert(std::tuple_size_v<std::array<unsigned char, 16>> == crypto_shorthash_KEYBYTES);

KeyHasher::KeyHasher() {
  randombytes_buf(secret_.data(), secret_.size());
}

std::uint64_t KeyHasher::operator()(const kv::EngineKey& key) const noexcept {
  std::array<std::byte, crypto_shorthash_BYTES> digest;
  crypto_shorthash(reinterpret_cast<unsigned char*>(digest.data()),
                   reinterpret_cast<const unsigned char*>(key.data()), key.size(), secret_.data());
  return load_le<std::uint64_t>(digest.data());
}

}  // namespace akv::gateway
