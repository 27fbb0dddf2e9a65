// A hostile controller's answers to Connect, properties and Identify: bring-up ends, and never with facts
// that would break an I/O queue.
#include "card/bring_up.hpp"
#include "input.hpp"

namespace akv::fuzz {
namespace {

constexpr int kMostCommands = 2000;  // a controller lists at most 1,024 namespaces

// The answer: a status, a result, and data that is taken from the input or kept from before.
fabric::Response answer(const fabric::Command& command, Input& input) {
  fabric::Response response;
  const auto how = input.number<std::uint8_t>();
  if ((how & 1U) != 0) response.cqe.set_status(input.number<std::uint16_t>() & 0x7FFFU);
  response.cqe.dw0 = input.number<std::uint32_t>();
  response.cqe.dw1 = input.number<std::uint32_t>();
  response.synthetic = (how & 2U) != 0;
  if (command.direction != fabric::Direction::from_target) return response;
  std::uint32_t room = 0;
  for (const iovec& part : command.data) {
    room += static_cast<std::uint32_t>(part.iov_len);
    if ((how & 4U) != 0) std::memset(part.iov_base, static_cast<int>(how), part.iov_len);
    while ((how & 8U) != 0 && !input.empty()) {
      const std::size_t at = input.number<std::uint16_t>() % part.iov_len;
      const auto patch = input.bytes(std::min<std::size_t>(input.number<std::uint8_t>(), part.iov_len - at));
      std::memcpy(static_cast<std::byte*>(part.iov_base) + at, patch.data(), patch.size());
      if (patch.size() % 2 == 1) break;
    }
  }
  response.received = (how & 16U) != 0 ? input.number<std::uint32_t>() % (room + 1) : room;
  return response;
}

void run(Input& input) {
  card::Identity identity{.host_nqn = "nqn.2014-08.org.nvmexpress:uuid:1",
                          .host_id = {},
                          .subsystem_nqn = "nqn.2024-01.org.akv:card",
                          .serial = "L0P0",
                          .namespace_uuid = {}};
  if ((input.number<std::uint8_t>() & 1U) != 0) identity.namespace_uuid.emplace();
  card::BringUp bring_up(identity, 5000, 128, 2);
  for (int i = 0; i < kMostCommands; ++i) {
    const auto next = bring_up.on_response(answer(bring_up.command(), input));
    if (next == card::BringUp::Next::failed)
      return check(!bring_up.reason().empty(), "a failure has a reason");
    if (next == card::BringUp::Next::done) {
      const auto& facts = bring_up.facts();
      check(facts.queues >= 1 && facts.queues <= 2, "no more queues than wanted");
      check(facts.queue_depth >= 1 && facts.queue_depth <= 128, "no deeper than wanted");
      check(facts.nsid != 0 && facts.max_value_bytes > 0, "a namespace with values");
      return;
    }
    // Without more input the controller says "not ready" for ever: its owner has a deadline for that.
    if (input.empty() && next == card::BringUp::Next::wait_and_send) return;
  }
  check(input.empty(), "bring-up ends");
}

}  // namespace
}  // namespace akv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  akv::fuzz::Input input(data, size);
  akv::fuzz::run(input);
  return 0;
}
