// The control socket: a client sends one line, "stats", "stop" or "fault ...", gets one line of JSON, and the
// connection ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/reactor.hpp"
#include "base/unique_fd.hpp"

namespace akv::softcard {

class ControlServer final : private FdHandler {
 public:
  struct Commands {
    std::function<nlohmann::ordered_json()> stats;
    std::function<void()> stop;
    // What follows "fault"; throws std::invalid_argument.
    std::function<nlohmann::ordered_json(const std::string&)> fault;
  };

  ControlServer(Reactor& reactor, UniqueFd listener, Commands commands);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

 private:
  class Session;

  void on_events(std::uint32_t events) noexcept override;
  [[nodiscard]] std::string answer(const std::string& line) const;
  void end(int fd) noexcept;

  Reactor& reactor_;
  UniqueFd listener_;
  Commands commands_;
  std::map<int, std::unique_ptr<Session>> sessions_;
};

// Client side: sends `line`, gives the answer. Throws std::runtime_error when none comes within 5 s.
[[nodiscard]] std::string ask_control(int socket, const std::string& line);

}  // namespace akv::softcard
