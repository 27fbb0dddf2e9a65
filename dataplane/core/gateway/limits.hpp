// What a session may ask for and how long it may take. Tests set smaller values.
#pragma once

#include <chrono>
#include <cstdint>

namespace akv::gateway {

struct Limits {
  std::uint32_t credits{32};                              // outstanding requests a session
  std::uint32_t max_frame{(32U << 20U) + (256U << 10U)};  // bytes of a frame's body
  std::uint32_t max_value{32U << 20U};                    // bytes of a block
  std::uint32_t max_session_entries{16'384};              // of a session's outstanding requests
  std::uint32_t max_sessions{1024};
  std::uint64_t inline_bytes{256U << 20U};  // frames and inline blocks under way, all sessions together
  // A session's inline blocks at which its requests wait. One more request and one more frame may come on
  // top, so a session has at most about a quarter of inline_bytes.
  std::uint64_t session_inline_bytes{32U << 20U};
  std::uint32_t max_regions{16};                         // a session; 0: no session has any
  std::uint32_t max_borrowed{16'384};                    // blocks that a session reads in place at a time
  std::uint64_t region_bytes{std::uint64_t{64} << 30U};  // of all sessions' regions together
  std::uint32_t max_output{1U << 20U};  // unsent bytes at which a session's requests are no longer read

  std::chrono::milliseconds hello_timeout{5000};
  std::chrono::milliseconds frame_timeout{30'000};         // from a frame's first byte to its last
  std::chrono::milliseconds write_timeout{10'000};         // with no byte taken by the client, or too few
  std::uint64_t slowest_reader_bytes_a_second{1U << 20U};  // at which a client may take its replies for ever
  std::chrono::milliseconds close_timeout{1000};           // for the client to read the last ERROR
  std::chrono::milliseconds tick{100};                     // how often those are looked at

  std::uint32_t card_commands{512};                  // in flight a worker and card
  std::uint64_t card_bytes{8U << 20U};               // in flight a worker and card
  std::chrono::milliseconds io_timeout{5000};        // of one command, and the base of a request's deadline
  std::uint64_t slowest_bytes_a_second{64U << 20U};  // a request's deadline grows by a second for each
};

// What is left to who moves `bytes` at the slowest rate that is accepted.
[[nodiscard]] constexpr std::chrono::microseconds time_for(std::uint64_t bytes,
                                                           std::uint64_t bytes_a_second) noexcept {
  return std::chrono::microseconds(1'000'000 * bytes / bytes_a_second);
}

}  // namespace akv::gateway
