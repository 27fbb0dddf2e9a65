#include "softcard/address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace akv::softcard {
namespace {

constexpr int kBacklog = 512;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size{0};

  [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
};

bool fill_v4(SocketAddress& out, const TcpEndpoint& endpoint) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(endpoint.port);
  if (::inet_pton(AF_INET, endpoint.address.c_str(), &v4.sin_addr) != 1) return false;
  std::memcpy(&out.storage, &v4, sizeof v4);
  out.size = sizeof v4;
  return true;
}

bool fill_v6(SocketAddress& out, const TcpEndpoint& endpoint) {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(endpoint.port);
  if (::inet_pton(AF_INET6, endpoint.address.c_str(), &v6.sin6_addr) != 1) return false;
  std::memcpy(&out.storage, &v6, sizeof v6);
  out.size = sizeof v6;
  return true;
}

SocketAddress to_socket_address(const TcpEndpoint& endpoint) {
  SocketAddress out;
  if (!fill_v4(out, endpoint) && !fill_v6(out, endpoint)) {
    throw std::invalid_argument("'" + endpoint.address +
                                "' is not an IPv4 or IPv6 address; names are not resolved");
  }
  return out;
}

[[noreturn]] void fail(const TcpEndpoint& endpoint, const char* what) {
  throw std::system_error(errno, std::generic_category(), std::string(what) + " " + endpoint.text());
}

}  // namespace

std::string TcpEndpoint::text() const {
  const bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

TcpEndpoint parse_endpoint(std::string_view text) {
  const auto colon = text.rfind(':');
  const auto bad = [&](const std::string& why) {
    return std::invalid_argument("'" + std::string(text) + "' " + why +
                                 "; write ADDRESS:PORT or [V6-ADDRESS]:PORT");
  };
  if (colon == std::string_view::npos) throw bad("has no port");
  auto host = text.substr(0, colon);
  const auto digits = text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || end != digits.data() + digits.size()) throw bad("has no port from 0 to 65535");
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (bracketed != (host.find(':') != std::string_view::npos)) throw bad("needs brackets around IPv6 alone");
  TcpEndpoint endpoint{.address = std::string(host), .port = port};
  static_cast<void>(to_socket_address(endpoint));
  return endpoint;
}

bool is_loopback(const TcpEndpoint& endpoint) {
  return endpoint.address.starts_with("127.") || endpoint.address == "::1";
}

UniqueFd listen_tcp(const TcpEndpoint& endpoint) {
  auto address = to_socket_address(endpoint);
  UniqueFd socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) fail(endpoint, "can't make a socket for");
  const int on = 1;
  // Connections of a card that was killed linger in TIME_WAIT and must not keep it from coming back.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), address.get(), address.size) != 0) fail(endpoint, "can't bind");
  if (::listen(socket.get(), kBacklog) != 0) fail(endpoint, "can't listen on");
  return socket;
}

TcpEndpoint local_endpoint(int socket) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (::getsockname(socket, address.get(), &address.size) != 0) {
    throw std::system_error(errno, std::generic_category(), "getsockname");
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.storage.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address.storage, sizeof v6);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return {.address = text.data(), .port = ntohs(v6.sin6_port)};
  }
  sockaddr_in v4{};
  std::memcpy(&v4, &address.storage, sizeof v4);
  ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  return {.address = text.data(), .port = ntohs(v4.sin_port)};
}

}  // namespace akv::softcard
