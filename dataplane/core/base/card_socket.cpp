#include "base/card_socket.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <string_view>

namespace akv {
namespace {

constexpr socklen_t kNameBytes = 16;  // TCP_CA_NAME_MAX

void leave_pacing(int fd) noexcept {
  std::array<char, kNameBytes + 1> name{};
  socklen_t size = kNameBytes;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return;
  if (!std::string_view(name.data()).starts_with("bbr")) return;
  for (const std::string_view other : {"cubic", "reno"}) {
    const auto bytes = static_cast<socklen_t>(other.size());
    if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, other.data(), bytes) == 0) return;
  }
}

}  // namespace

void set_card_socket_options(int fd) noexcept {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  leave_pacing(fd);
}

}  // namespace akv
