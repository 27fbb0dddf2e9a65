#include "gateway/listener.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "base/events.hpp"

namespace akv::gateway {
namespace {

constexpr int kBacklog = 256;
constexpr auto kPause = std::chrono::milliseconds(200);

std::string reason(int error) {
  return std::generic_category().message(error);
}

struct AddressDeleter {
  void operator()(addrinfo* info) const noexcept { ::freeaddrinfo(info); }
};

std::unique_ptr<addrinfo, AddressDeleter> resolve(const std::string& address, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw ListenError("bind_address " + address + " is not an IP address; write an IPv4 or IPv6 address");
  }
  return std::unique_ptr<addrinfo, AddressDeleter>(found);
}

[[noreturn]] void fail_tcp(const std::string& address, std::uint16_t port, int error) {
  const std::string place = "port " + std::to_string(port) + " on " + address;
  if (error == EADDRINUSE) throw ListenError(place + " is in use; choose a free port");
  throw ListenError(place + " can't be listened on: " + reason(error));
}

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty()) throw ListenError("client_socket is empty; write the path of a Unix socket");
  if (path.size() >= sizeof address.sun_path) {
    throw ListenError("client_socket " + path + " is too long for a Unix socket; choose a shorter path");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// 0 when somebody answers at a socket file, else why not.
int knock(const std::string& path, const sockaddr_un& address) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) throw ListenError("client_socket " + path + " can't be listened on: " + reason(errno));
  return ::connect(probe.get(), generic(address), sizeof address) == 0 ? 0 : errno;
}

// Takes away the socket file of a process that has ended; throws when that is not certain.
void remove_stale(const std::string& path, const sockaddr_un& address) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) return;
  if (!S_ISSOCK(info.st_mode))
    throw ListenError("client_socket " + path + " is there and is no socket; move it away");
  const int error = knock(path, address);
  if (error == 0 || error == EAGAIN)  // its backlog is full
    throw ListenError("client_socket " + path +
                      " is in use by another gateway; stop it or choose another path");
  if (error != ECONNREFUSED)
    throw ListenError("client_socket " + path + " is there, and who listens on it can't be told: " +
                      reason(error) + "; move it away or choose another path");
  ::unlink(path.c_str());
}

void prepare_connection(int socket) {
  const int on = 1;
  const int idle_seconds = 30;
  const int interval_seconds = 10;
  const int probes = 3;
  // They fail on Unix sockets, where they mean nothing.
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof interval_seconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

bool transient(int error) {
  return error == EINTR || error == ECONNABORTED || error == EPROTO || error == EPERM;
}

}  // namespace

UniqueFd listen_tcp(const std::string& address, std::uint16_t port) {
  const auto info = resolve(address, port);
  UniqueFd socket(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) fail_tcp(address, port, errno);
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool listens =
      ::bind(socket.get(), info->ai_addr, info->ai_addrlen) == 0 && ::listen(socket.get(), kBacklog) == 0;
  if (!listens) fail_tcp(address, port, errno);
  return socket;
}

UniqueFd listen_unix(const std::string& path) {
  const sockaddr_un address = unix_address(path);
  remove_stale(path, address);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Nobody can connect before listen(), so the mode is right from the first connection on.
  const bool listens = socket && ::bind(socket.get(), generic(address), sizeof address) == 0 &&
                       ::chmod(path.c_str(), S_IRUSR | S_IWUSR) == 0 && ::listen(socket.get(), kBacklog) == 0;
  if (!listens) throw ListenError("client_socket " + path + " can't be listened on: " + reason(errno));
  return socket;
}

Listener::Listener(Reactor& reactor, UniqueFd socket, Accepted accepted)
    : reactor_(reactor), socket_(std::move(socket)), accepted_(std::move(accepted)) {
  reactor_.add(socket_.get(), EPOLLIN, *this);
}

Listener::~Listener() {
  reactor_.remove(socket_.get());
  reactor_.cancel(resume_);
}

void Listener::on_events(std::uint32_t /*events*/) noexcept {
  // A bounded number, so that a flood of connections does not starve the sessions.
  for (int i = 0; i < 64; ++i) {
    UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK) return;
      if (transient(error)) continue;
      return pause(error);
    }
    told_paused_ = false;
    prepare_connection(connection.get());
    accepted_(std::move(connection));
  }
}

// No descriptor or no memory: the connection stays in the backlog, and asking again at once would only spin.
void Listener::pause(int error) {
  if (!std::exchange(told_paused_, true)) {
    log_event(Level::warning, "accept_paused", {{"reason", reason(error)}});
  }
  reactor_.modify(socket_.get(), 0);
  resume_ = reactor_.call_after(kPause, [this] { reactor_.modify(socket_.get(), EPOLLIN); });
}

}  // namespace akv::gateway
