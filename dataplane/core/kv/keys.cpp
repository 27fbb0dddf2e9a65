#include "kv/keys.hpp"

#include <sodium.h>

#include <initializer_list>
#include <limits>
#include <stdexcept>

#include "base/bytes.hpp"

namespace akv::kv {
namespace {

using Hash = crypto_generichash_blake2b_state;

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

void update(Hash& hash, std::span<const std::byte> bytes) {
  crypto_generichash_blake2b_update(&hash, raw(bytes.data()), bytes.size());
}

template <std::unsigned_integral T>
void update_number(Hash& hash, T value) {
  std::array<std::byte, sizeof(T)> bytes;
  store_le(bytes.data(), value);
  update(hash, bytes);
}

void update_field(Hash& hash, std::span<const std::byte> bytes) {
  update_number(hash, static_cast<std::uint32_t>(bytes.size()));
  update(hash, bytes);
}

void update_u32_field(Hash& hash, std::uint32_t value) {
  update_number(hash, std::uint32_t{sizeof value});
  update_number(hash, value);
}

CardKey finish(Hash& hash) {
  CardKey digest;
  crypto_generichash_blake2b_final(&hash, reinterpret_cast<unsigned char*>(digest.data()), digest.size());
  return digest;
}

Hash unkeyed() {
  Hash hash;
  crypto_generichash_blake2b_init(&hash, nullptr, 0, sizeof(CardKey));
  return hash;
}

}  // namespace

// The hash after the fields that all keys of a namespace share.
struct KeyDeriver::Prefix {
  Prefix(std::string_view label, std::string_view name, const Secret& secret, std::uint32_t num_dbs) {
    crypto_generichash_blake2b_init(&hash, raw(secret.data()), secret.size(), sizeof(CardKey));
    update_field(hash, as_byte_span(label));
    update_u32_field(hash, kLayoutVersion);
    update_field(hash, as_byte_span(name));
    update_u32_field(hash, num_dbs);
  }
  Prefix(const Prefix&) = delete;
  Prefix& operator=(const Prefix&) = delete;
  // It holds the secret.
  ~Prefix() { sodium_memzero(&hash, sizeof hash); }

  Hash hash;
};

void init_crypto() {
  if (sodium_init() < 0) throw std::runtime_error("libsodium can't be initialized");
}

std::uint32_t db_index(const EngineKey& key, std::uint32_t num_dbs) noexcept {
  return load_le<std::uint32_t>(key.data()) % num_dbs;
}

std::uint32_t namespace_id(std::string_view name) {
  Hash hash = unkeyed();
  update(hash, as_byte_span({"akv-ns-1\0", 9}));
  update(hash, as_byte_span(name));
  return load_le<std::uint32_t>(finish(hash).data());
}

KeyDeriver::KeyDeriver(std::string_view name, const Secret& secret, std::uint32_t num_dbs)
    : value_prefix_(std::make_unique<Prefix>("akv-key-1", name, secret, num_dbs)),
      segment_prefix_(std::make_unique<Prefix>("akv-segment-1", name, secret, num_dbs)),
      num_dbs_(num_dbs) {
  if (num_dbs == 0) throw std::invalid_argument("num_dbs must be at least 1");
}

KeyDeriver::~KeyDeriver() = default;
KeyDeriver::KeyDeriver(KeyDeriver&&) noexcept = default;
KeyDeriver& KeyDeriver::operator=(KeyDeriver&&) noexcept = default;

CardKey KeyDeriver::value_key(const EngineKey& key) const {
  Hash hash = value_prefix_->hash;
  update_u32_field(hash, db_index(key, num_dbs_));
  update_field(hash, key);
  return finish(hash);
}

CardKey KeyDeriver::segment_key(const EngineKey& key, std::uint32_t index, std::uint32_t count,
                                std::uint32_t total) const {
  Hash hash = segment_prefix_->hash;
  update_u32_field(hash, db_index(key, num_dbs_));
  update_field(hash, key);
  for (const std::uint32_t field : {index, count, total})
    update_u32_field(hash, field);
  return finish(hash);
}

std::string plan_fingerprint(std::uint32_t num_dbs, std::span<const PlannedCard> cards) {
  Hash hash = unkeyed();
  update(hash, as_byte_span({"akv-plan-1\0", 11}));
  update_number(hash, kLayoutVersion);
  update_number(hash, num_dbs);
  for (const PlannedCard& card : cards) {
    if (card.serial.size() > std::numeric_limits<std::uint16_t>::max()) {
      throw std::invalid_argument("a serial number has at most 65,535 bytes");
    }
    update_number(hash, card.slot);
    update_number(hash, static_cast<std::uint16_t>(card.serial.size()));
    update(hash, as_byte_span(card.serial));
  }
  const CardKey digest = finish(hash);
  std::array<char, 2 * 8 + 1> text;
  sodium_bin2hex(text.data(), text.size(), raw(digest.data()), 8);
  return std::string(text.data());
}

}  // namespace akv::kv
