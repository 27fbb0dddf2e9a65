#include "softcard/control.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/clock.hpp"

namespace akv::softcard {
namespace {

constexpr std::size_t kMaxSessions = 16;
constexpr std::size_t kMaxLine = 256;
constexpr const char* kNoLine = "a command is one line of at most 255 bytes and its end";
constexpr auto kSessionTime = std::chrono::seconds(5);

std::string error_text(const std::string& message) {
  return nlohmann::ordered_json{{"error", message}}.dump();
}

}  // namespace

class ControlServer::Session final : public FdHandler {
 public:
  Session(ControlServer& server, UniqueFd socket)
      : server_(server),
        socket_(std::move(socket)),
        timer_(server.reactor_.call_after(kSessionTime, [this] { server_.end(socket_.get()); })) {
    server_.reactor_.add(socket_.get(), EPOLLIN, *this);
  }
  ~Session() {
    server_.reactor_.cancel(timer_);
    server_.reactor_.remove(socket_.get());
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void on_events(std::uint32_t) noexcept override {
    std::array<char, kMaxLine> bytes{};
    const auto got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0) line_.append(bytes.data(), static_cast<std::size_t>(got));
    const auto end = line_.find('\n');
    if (end == std::string::npos && got > 0 && line_.size() < kMaxLine) return;
    // A part of a line may be another command than the whole.
    const bool whole = end < kMaxLine;  // npos is not
    // An answer is a few kilobytes and the socket is empty: one call takes it whole.
    const auto text = (whole ? server_.answer(line_.substr(0, end)) : error_text(kNoLine)) + "\n";
    if (got >= 0) ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    server_.end(socket_.get());
  }

 private:
  ControlServer& server_;
  UniqueFd socket_;
  TimerId timer_;
  std::string line_;
};

ControlServer::ControlServer(Reactor& reactor, UniqueFd listener, Commands commands)
    : reactor_(reactor), listener_(std::move(listener)), commands_(std::move(commands)) {
  reactor_.add(listener_.get(), EPOLLIN, *this);
}

ControlServer::~ControlServer() {
  reactor_.remove(listener_.get());
  sessions_.clear();
}

void ControlServer::on_events(std::uint32_t) noexcept {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket || sessions_.size() >= kMaxSessions) return;
  const int fd = socket.get();
  sessions_.emplace(fd, std::make_unique<Session>(*this, std::move(socket)));
}

std::string ControlServer::answer(const std::string& line) const {
  if (line == "stats") return commands_.stats().dump();
  if (line == "stop") {
    commands_.stop();
    return nlohmann::ordered_json{{"state", "stopping"}}.dump();
  }
  if (line.starts_with("fault ")) {
    try {
      return commands_.fault(line.substr(6)).dump();
    } catch (const std::invalid_argument& error) {
      return error_text(error.what());
    }
  }
  return error_text("unknown command; there are stats, stop and fault");
}

void ControlServer::end(int fd) noexcept {
  auto node = sessions_.extract(fd);
  if (node.empty()) return;
  // The session is still running up the call stack.
  reactor_.defer([session = std::shared_ptr<Session>(std::move(node.mapped()))] {});
}

std::string ask_control(int socket, const std::string& line) {
  const auto text = line + "\n";
  if (::send(socket, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error("the card does not take commands");
  }
  std::string answer;
  const Deadline deadline(monotonic_now(), kSessionTime);
  while (answer.find('\n') == std::string::npos) {
    pollfd wait{.fd = socket, .events = POLLIN, .revents = 0};
    const auto left = static_cast<int>(to_milliseconds(deadline.left(monotonic_now())));
    if (::poll(&wait, 1, left) <= 0) throw std::runtime_error("the card does not answer");
    std::array<char, 4096> bytes{};
    const auto got = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (got <= 0) throw std::runtime_error("the card ended the conversation");
    answer.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return answer.substr(0, answer.find('\n'));
}

}  // namespace akv::softcard
