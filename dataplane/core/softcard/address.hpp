// Where the card listens: address literals only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"

namespace akv::softcard {

struct TcpEndpoint {
  std::string address;  // IPv4 or IPv6 literal, without brackets
  std::uint16_t port{0};

  [[nodiscard]] std::string text() const;  // "127.0.0.1:4420", "[::1]:4420"
};

// "127.0.0.11:4420", "[::1]:0". Throws std::invalid_argument that says what is wrong.
[[nodiscard]] TcpEndpoint parse_endpoint(std::string_view text);
[[nodiscard]] bool is_loopback(const TcpEndpoint& endpoint);

// Non-blocking. Throws std::system_error that names the address.
[[nodiscard]] UniqueFd listen_tcp(const TcpEndpoint& endpoint);
// The address a socket is bound to; throws std::system_error.
[[nodiscard]] TcpEndpoint local_endpoint(int socket);

}  // namespace akv::softcard
