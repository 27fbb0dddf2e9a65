// The real akv-softcard as a child process.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "card/card_set.hpp"
#include "fabric_support.hpp"
#include "paths.hpp"

namespace akv::card::test {

// A directory of its own below the system's temporary one; goes with the object.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "akv-card-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  [[nodiscard]] std::string path(const std::string& name = "") const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

class SoftcardProcess {
 public:
  // Starts a card on a free port and waits until it is ready.
  SoftcardProcess(const ScratchDirectory& directory, const std::string& serial,
                  const std::string& id = "xdp0", std::vector<std::string> more = {})
      : serial_(serial), host_(fabric::test::random_loopback()) {
    std::vector<std::string> words{akv::test::kSoftcard, "serve",         "--id",       id,
                                   "--serial",           serial,          "--nqn",      nqn(),
                                   "--listen",           host_ + ":0",    "--capacity", "64M",
                                   "--state-dir",        directory.path()};
    words.insert(words.end(), more.begin(), more.end());
    start(words);
    read_port();
  }
  ~SoftcardProcess() { kill(); }
  SoftcardProcess(const SoftcardProcess&) = delete;
  SoftcardProcess& operator=(const SoftcardProcess&) = delete;

  [[nodiscard]] CardSpec spec() const { return {serial_, nqn(), "", {{"tcp", host_, port_}}}; }
  void suspend() const {
    ASSERT_EQ(::kill(pid_, SIGSTOP), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  void resume() const { ASSERT_EQ(::kill(pid_, SIGCONT), 0); }
  // SIGKILL: the card has no chance to say goodbye.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  [[nodiscard]] std::string nqn() const { return "nqn.2024-01.io.akv:" + serial_; }

  void start(const std::vector<std::string>& words) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    log_.reset(ends[0]);
    UniqueFd write_end(ends[1]);
    std::vector<char*> arguments;
    for (const std::string& word : words)
      arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a crashed test leaves no card behind
      ::dup2(write_end.get(), STDERR_FILENO);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ASSERT_GT(pid_, 0);
  }

  // From the log line of the event "ready".
  void read_port() {
    std::string log;
    const Deadline deadline(monotonic_now(), std::chrono::seconds(20));
    const std::string key = "\"trsvcid\":\"";
    while (!deadline.passed(monotonic_now())) {
      const auto ready = log.find("\"event\":\"ready\"");
      if (ready != std::string::npos && log.find('\n', ready) != std::string::npos) {
        const auto begin = log.find(key, ready) + key.size();
        port_ = log.substr(begin, log.find('"', begin) - begin);
        return;
      }
      pollfd readable{log_.get(), POLLIN, 0};
      ::poll(&readable, 1, 100);
      std::array<char, 4096> piece;
      if (readable.revents == 0) continue;
      const ssize_t got = ::read(log_.get(), piece.data(), piece.size());
      if (got <= 0) break;
      log.append(piece.data(), static_cast<std::size_t>(got));
    }
    FAIL() << "the software card did not get ready: " << log;
  }

  const std::string serial_;
  const std::string host_;
  std::string port_;
  UniqueFd log_;
  pid_t pid_{0};
};

}  // namespace akv::card::test
