#include "fabric/address.hpp"

#include <netdb.h>

#include <charconv>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace akv::fabric {
namespace {

std::uint16_t parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size() || port == 0) {
    throw std::invalid_argument("trsvcid \"" + std::string(text) + "\" is not a port from 1 to 65535");
  }
  return port;
}

}  // namespace

TcpAddress::TcpAddress(std::string_view traddr, std::string_view trsvcid) {
  const std::string host(traddr);
  const std::string port = std::to_string(parse_port(trsvcid));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    throw std::invalid_argument("traddr \"" + host + "\" is not an IPv4 or IPv6 address literal");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::memcpy(&storage_, found->ai_addr, found->ai_addrlen);
  size_ = found->ai_addrlen;
  text_ = "tcp://" + (family() == AF_INET6 ? "[" + host + "]" : host) + ":" + port;
}

}  // namespace akv::fabric
