// The gateway's side of HELLO: version, namespace and proof of its secret (docs/protocol.md, "HELLO"). No
// I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "gateway/wire.hpp"
#include "kv/keys.hpp"

namespace akv::gateway {

// By namespace. Empty: no namespace is protected, all are served.
using Secrets = std::map<std::string, kv::Secret, std::less<>>;

inline constexpr std::string_view kClientLabel = "akv-hello-1";
inline constexpr std::string_view kServerLabel = "akv-welcome-1";

// HMAC-SHA-256 over label, both nonces and the namespace with its u16 length.
[[nodiscard]] wire::Mac session_mac(std::string_view label, const kv::Secret& secret,
                                    const wire::Nonce& client_nonce, const wire::Nonce& server_nonce,
                                    std::string_view name_space);

[[nodiscard]] wire::Nonce random_nonce();

// What to do with a HELLO.
struct HelloOutcome {
  wire::FrameStatus status{wire::FrameStatus::ok};  // ok, auth_required, auth_failed or unsupported
  std::string text;                                 // why it was refused
  wire::Nonce server_nonce{};                       // with auth_required
  wire::Mac server_mac{};                           // with ok; zero without a secret
  kv::Secret secret{};                              // with ok; zero without one
};

// One per connection.
class Handshake {
 public:
  // `secrets` must outlive this. `nonce` makes the gateway's nonces.
  explicit Handshake(const Secrets& secrets, std::function<wire::Nonce()> nonce = random_nonce)
      : secrets_(secrets), nonce_(std::move(nonce)) {}

  [[nodiscard]] HelloOutcome receive(const wire::Hello& hello);

 private:
  [[nodiscard]] HelloOutcome challenge(const wire::Hello& hello);
  [[nodiscard]] HelloOutcome check(const wire::Hello& hello, const kv::Secret& secret) const;

  struct Challenge {
    wire::Nonce client_nonce;
    wire::Nonce server_nonce;
    std::string name_space;
  };

  const Secrets& secrets_;
  std::function<wire::Nonce()> nonce_;
  std::optional<Challenge> challenge_;
};

}  // namespace akv::gateway
