#include "gateway/handshake.hpp"

#include <sodium.h>

#include <array>
#include <utility>

#include "base/bytes.hpp"

namespace akv::gateway {
namespace {

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

HelloOutcome refused(wire::FrameStatus status, std::string text) {
  HelloOutcome outcome;
  outcome.status = status;
  outcome.text = std::move(text);
  return outcome;
}

}  // namespace

wire::Mac session_mac(std::string_view label, const kv::Secret& secret, const wire::Nonce& client_nonce,
                      const wire::Nonce& server_nonce, std::string_view name_space) {
  std::array<std::byte, 2> length;
  store_le(length.data(), static_cast<std::uint16_t>(name_space.size()));
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, raw(secret.data()), secret.size());
  const auto update = [&state](std::span<const std::byte> bytes) {
    crypto_auth_hmacsha256_update(&state, raw(bytes.data()), bytes.size());
  };
  update(as_byte_span(label));
  update(client_nonce);
  update(server_nonce);
  update(length);
  update(as_byte_span(name_space));
  wire::Mac mac;
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(mac.data()));
  return mac;
}

wire::Nonce random_nonce() {
  wire::Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

HelloOutcome Handshake::receive(const wire::Hello& hello) {
  if (hello.version_min > wire::kVersion || hello.version_max < wire::kVersion) {
    return refused(wire::FrameStatus::unsupported, "this gateway speaks version 1; the client offers " +
                                                       std::to_string(hello.version_min) + " to " +
                                                       std::to_string(hello.version_max));
  }
  if (secrets_.empty()) return {};
  const auto secret = secrets_.find(hello.name_space);
  if (secret == secrets_.end()) {
    return refused(wire::FrameStatus::auth_failed,
                   "the namespace has no secret at this gateway; add it to namespace_secrets");
  }
  return challenge_ ? check(hello, secret->second) : challenge(hello);
}

HelloOutcome Handshake::challenge(const wire::Hello& hello) {
  if (!hello.mac_is_zero()) {
    return refused(wire::FrameStatus::auth_failed, "a mac came before the gateway's nonce");
  }
  challenge_ = Challenge{hello.client_nonce, nonce_(), hello.name_space};
  HelloOutcome outcome;
  outcome.status = wire::FrameStatus::auth_required;
  outcome.server_nonce = challenge_->server_nonce;
  return outcome;
}

HelloOutcome Handshake::check(const wire::Hello& hello, const kv::Secret& secret) const {
  const auto& [client_nonce, server_nonce, name_space] = *challenge_;
  const wire::Mac wanted = session_mac(kClientLabel, secret, client_nonce, server_nonce, name_space);
  const bool right = hello.client_nonce == client_nonce && hello.name_space == name_space &&
                     sodium_memcmp(wanted.data(), hello.mac.data(), wanted.size()) == 0;
  if (!right)
    return refused(wire::FrameStatus::auth_failed, "the mac is wrong; check the namespace's secret");
  HelloOutcome outcome;
  outcome.server_mac = session_mac(kServerLabel, secret, client_nonce, server_nonce, name_space);
  outcome.secret = secret;
  return outcome;
}

}  // namespace akv::gateway
