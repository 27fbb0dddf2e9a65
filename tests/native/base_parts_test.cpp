#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "base/backoff.hpp"
#include "base/bytes.hpp"
#include "base/card_socket.hpp"
#include "base/crc32c.hpp"
#include "base/events.hpp"
#include "base/unique_fd.hpp"

namespace akv {
namespace {

using std::chrono::milliseconds;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  std::string drain() {
    std::string all;
    char piece[4096];
    for (ssize_t got = 0; (got = ::read(read_end.get(), piece, sizeof piece)) > 0;)
      all.append(piece, static_cast<std::size_t>(got));
    return all;
  }
  UniqueFd read_end;
  UniqueFd write_end;
};

// Check values of RFC 3720, B.4.
TEST(Crc32c, MatchesTheIscsiVectors) {
  const std::array<std::byte, 32> zeros{};
  EXPECT_EQ(crc32c(zeros), 0x8A9136AAU);
  EXPECT_EQ(crc32c(as_byte_span("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32c, PiecesGiveTheSameValueAsTheWhole) {
  Crc32c crc;
  crc.update(as_byte_span("1234"));
  crc.update({});
  crc.update(as_byte_span("56789"));
  EXPECT_EQ(crc.value(), 0xE3069283U);
}

TEST(UniqueFd, ClosesOnceAndMoves) {
  UniqueFd first(::dup(STDERR_FILENO));
  const int number = first.get();
  UniqueFd second(std::move(first));
  EXPECT_EQ(second.get(), number);
  second.reset();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(Backoff, DoublesToTheCapAndStaysWithinItsJitter) {
  Backoff low(milliseconds(100), milliseconds(1000), [] { return 0.0; });
  Backoff high(milliseconds(100), milliseconds(1000), [] { return 0.999999; });
  for (const int base : {100, 200, 400, 800, 1000, 1000}) {
    EXPECT_EQ(low.next(), milliseconds(base / 2));
    EXPECT_GE(high.next(), milliseconds(base - 1));
  }
  low.reset();
  EXPECT_EQ(low.next(), milliseconds(50));
}

TEST(Backoff, RefusesNonsense) {
  EXPECT_THROW(Backoff(milliseconds(0), milliseconds(1), make_uniform(1)), std::invalid_argument);
  EXPECT_THROW(Backoff(milliseconds(2), milliseconds(1), make_uniform(1)), std::invalid_argument);
}

TEST(JsonLines, WritesOneObjectALineAndSurvivesForeignBytes) {
  Pipe pipe;
  JsonLinesSink sink(pipe.write_end.get());
  sink.emit(
      Event{Level::warning, "card_state", 1.5, {{"serial", "L0\xFF\n"}, {"strikes", 3}, {"live", false}}});
  const auto line = nlohmann::json::parse(pipe.drain());
  EXPECT_EQ(line.at("event"), "card_state");
  EXPECT_EQ(line.at("level"), "warning");
  EXPECT_EQ(line.at("serial"), "L0\uFFFD\n");
  EXPECT_EQ(line.at("strikes"), 3);
  EXPECT_EQ(line.at("live"), false);
}

TEST(JsonLines, AFullPipeDropsAndCountsInsteadOfBlocking) {
  Pipe pipe;
  EXPECT_EQ(::fcntl(pipe.write_end.get(), F_SETFL, 0), 0);  // blocking, as stderr mostly is
  JsonLinesSink sink(pipe.write_end.get());
  for (int i = 0; i < 200; ++i)
    sink.emit(Event{Level::info, "noise", 0, {{"text", std::string(1000, 'x')}}});
  pipe.drain();
  sink.emit(Event{Level::info, "after", 0, {}});
  EXPECT_GT(nlohmann::json::parse(pipe.drain()).at("dropped_events"), 0);
}

TEST(JsonLines, AnOverlongEventIsCutToItsName) {
  Pipe pipe;
  JsonLinesSink sink(pipe.write_end.get());
  sink.emit(Event{Level::info, "big", 0, {{"text", std::string(10000, 'x')}}});
  const auto line = nlohmann::json::parse(pipe.drain());
  EXPECT_EQ(line.at("event"), "big");
  EXPECT_GT(line.at("truncated_bytes"), 10000);
}

TEST(EventQueue, IsBoundedAndTellsWhatItDropped) {
  auto queue = std::make_shared<EventQueue>(2);
  const auto before = set_event_sink(queue);
  for (int i = 0; i < 5; ++i)
    log_event(Level::info, "tick", {{"n", i}});
  set_event_sink(before);
  pollfd ready{queue->fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 1);
  const auto events = queue->take();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(std::get<std::int64_t>(events[1].fields.at(0).value), 1);
  EXPECT_EQ(events[2].name, "events_dropped");
  EXPECT_EQ(std::get<std::uint64_t>(events[2].fields.at(0).value), 3U);
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
}

std::string congestion_control(int fd) {
  std::array<char, 17> name{};
  socklen_t size = 16;
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size), 0);
  return name.data();
}

TEST(CardSocket, LeavesBbrAloneAmongWhatTheMachineChose) {
  for (const std::string chosen : {"bbr", "reno"}) {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto size = static_cast<socklen_t>(chosen.size());
    // Not every kernel has BBR, nor lets everybody choose it.
    if (::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, chosen.data(), size) != 0) continue;
    set_card_socket_options(fd.get());
    const std::string now = congestion_control(fd.get());
    EXPECT_TRUE(chosen == "bbr" ? now == "cubic" || now == "reno" : now == chosen) << now;
    int no_delay = 0;
    socklen_t bytes = sizeof no_delay;
    EXPECT_EQ(::getsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &bytes), 0);
    EXPECT_NE(no_delay, 0);
  }
}

}  // namespace
}  // namespace akv
