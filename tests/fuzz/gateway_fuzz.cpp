// The gateway's wire protocol: a client that sends anything, beside cards that answer in any way and order.
// Every reply is well formed, and when the client is gone nothing of it is left.
#include <sys/mman.h>
#include <unistd.h>

#include <deque>

#include "base/events.hpp"
#include "gateway_support.hpp"
#include "input.hpp"

namespace akv::fuzz {
namespace {

using gateway::test::Bench;
using gateway::test::Bytes;
namespace wire = gateway::wire;

// Cuts the replies and looks at each.
class Replies {
 public:
  void take(std::span<const std::byte> bytes) {
    stream_.insert(stream_.end(), bytes.begin(), bytes.end());
    while (stream_.size() >= wire::kHeaderBytes) {
      const auto header = wire::decode_header(std::span(stream_).first<wire::kHeaderBytes>());
      check(header.has_value(), "a reply begins with the magic");
      if (stream_.size() < wire::kHeaderBytes + header->body_len) return;
      look(*header);
      stream_.erase(stream_.begin(),
                    stream_.begin() + static_cast<long>(wire::kHeaderBytes + header->body_len));
    }
  }

 private:
  static void look(const wire::Header& header) {
    check((header.opcode & wire::kReply) != 0, "only replies are sent");
    const bool notice = header.opcode == (static_cast<std::uint16_t>(wire::Opcode::released) | wire::kReply);
    check(!notice || (header.body_len == 0 && header.count == 0), "a notice has neither body nor entries");
    check(header.status <= 8, "the frame status is one of those that exist");
    if (header.status != 0 || header.opcode == wire::kErrorOpcode)
      check(header.count == 0, "a refusal has no entries");
    const auto opcode = static_cast<wire::Opcode>(header.opcode & ~wire::kReply);
    if (header.status == 0 && opcode == wire::Opcode::get) {
      check(header.body_len >= header.count * wire::kGetReplyEntryBytes, "GET has all its entries");
    }
    if (header.status == 0 && opcode == wire::Opcode::borrow) {
      check(header.body_len == header.count * wire::kBorrowReplyEntryBytes, "BORROW has all its entries");
    }
    if (header.status == 0 && (opcode == wire::Opcode::put || opcode == wire::Opcode::remove)) {
      check(header.body_len == header.count * 4, "PUT and DELETE have all their entries");
    }
  }

  Bytes stream_;
};

class Run {
 public:
  explicit Run(std::uint8_t how)
      : bench_(limits(), secrets(how), 512U << 10U, 256U << 10U, (how & 128U) != 0) {
    int pair[2];
    check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
    socket_.reset(pair[0]);
    bench_.worker.adopt(UniqueFd(pair[1]), (how & 2U) == 0);
    bench_.queue().max_value = (how & 4U) != 0 ? 4096 + 64 : 64U << 20U;
    bench_.queue().hold = (how & 8U) != 0;
    bench_.queue().depth = (how & 16U) != 0 ? 2 : 1024;
    if ((how & 32U) != 0)
      send(gateway::test::frame(wire::Opcode::hello,
                                gateway::test::hello_body(128U << 10U, "default", features(how)), 0, 1));
  }

  void step(Input& input) {
    const auto what = input.number<std::uint8_t>();
    if (what >= 248) return use_region(what, input);
    auto& queue = bench_.queue();
    const std::size_t index = queue.held.empty() ? 0 : what / 8U % queue.held.size();
    switch (what % 8) {
      case 0:  // any bytes
        return send(input.bytes(input.number<std::uint16_t>()));
      case 1:
      case 2:  // a frame whose lengths agree
        return send_frame(input);
      case 3:
        if (!queue.held.empty()) queue.answer(index);
        break;
      case 4:
        if (!queue.held.empty()) queue.fail(index, static_cast<card::IoStatus>(what / 8U % 8U));
        break;
      case 5:
        if (!queue.held.empty()) queue.time_out(index);
        break;
      case 6:
        if (!queue.late.empty()) queue.release_late();
        break;
      default:  // a card's value becomes another
        damage(input);
    }
    turn();
  }

  void finish() {
    socket_.reset();
    bench_.queue().hold = false;
    bench_.queue().answer_all();
    while (!bench_.queue().late.empty())
      bench_.queue().release_late();
    const auto idle = [this] { return bench_.worker.idle() && bench_.shared.sessions.load() == 0; };
    check(bench_.turn_until(idle), "the session ends with its client");
    check(bench_.leased() == 0, "no lease is left");
    check(bench_.shared.arena->used() == 0, "the session's memory is given back");
    check(bench_.shared.inline_memory->used() == 0, "private memory is given back");
    check(bench_.shared.regions->used() == 0, "no region is left");
    check(bench_.shared.cache.borrowed->load() == 0, "no block is lent any more");
  }

 private:
  static gateway::Limits limits() {
    gateway::Limits limits;
    limits.max_frame = 256U << 10U;
    limits.max_value = 64U << 10U;
    limits.inline_bytes = 512U << 10U;
    limits.credits = 8;
    return limits;
  }
  static std::uint32_t features(std::uint8_t how) {
    return ((how & 64U) != 0 ? wire::kFeatureRegions : 0) | ((how & 128U) != 0 ? wire::kFeatureBorrowing : 0);
  }
  static gateway::Secrets secrets(std::uint8_t how) {
    if ((how & 1U) == 0) return {};
    return {{"default", kv::Secret{}}};
  }

  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) bytes = bytes.subspan(static_cast<std::size_t>(sent));
      if (sent < 0 && errno != EAGAIN) return;
      turn();
    }
  }
  // Registers the file, or a descriptor beside any frame, or makes the file another size.
  void use_region(std::uint8_t what, Input& input) {
    const std::uint64_t offset = input.number<std::uint8_t>() % 4U * 4096U;
    if (what < 250) return check(::ftruncate(file_.get(), static_cast<off_t>(offset)) == 0, "ftruncate");
    Bytes body;
    gateway::test::append(body, offset);
    gateway::test::append(body, std::uint64_t{input.number<std::uint16_t>()});
    const auto opcode = what == 255 ? wire::Opcode::stats : wire::Opcode::register_region;
    const Bytes request = gateway::test::frame(opcode, body, 1, what);
    if (!gateway::test::send_descriptors(socket_.get(), {file_.get()}, request)) return;
    send(std::span(request).subspan(1));
  }
  void send_frame(Input& input) {
    const auto opcode = static_cast<wire::Opcode>(1 + input.number<std::uint8_t>() % 13U);
    const auto count = 1U + input.number<std::uint8_t>() % 8U;
    const auto id = input.number<std::uint8_t>();
    const auto status = static_cast<std::uint16_t>(input.number<std::uint8_t>() % 2U);
    Bytes body;
    for (unsigned i = 0; i < count; ++i)
      append_entry(body, opcode, input);
    if (inline_bytes_ != 0 && opcode == wire::Opcode::put) body.resize(body.size() + inline_bytes_);
    inline_bytes_ = 0;
    send(gateway::test::frame(opcode, body, opcode == wire::Opcode::stats ? 0 : count, id, status));
  }
  void append_entry(Bytes& body, wire::Opcode opcode, Input& input) {
    using gateway::test::append;
    const auto which = input.number<std::uint8_t>();
    switch (opcode) {
      case wire::Opcode::alloc:
        return append(body, std::uint32_t{which} * 97U);
      case wire::Opcode::free:
        return append(body, std::uint64_t{which} * 4096U);
      case wire::Opcode::put:
      case wire::Opcode::get: {
        const bool is_inline = (which & 0x80U) != 0;
        const std::uint32_t length = 1U + input.number<std::uint16_t>();
        append(body, gateway::test::key_of(which % 8U));
        append(body, std::uint64_t{which & 0x78U} * 512U);
        append(body, length);
        append(body, is_inline ? wire::kRegionInline : static_cast<std::uint16_t>(which % 3U));
        append(body, std::uint16_t{0});
        if (is_inline) inline_bytes_ += length;
        return;
      }
      case wire::Opcode::unregister_region:
        return append(body, std::uint64_t{which % 4U});
      case wire::Opcode::give_back:
        return append(body, std::uint64_t{which % 64U} * 4096U);
      case wire::Opcode::exists:
      case wire::Opcode::remove:
      case wire::Opcode::borrow:
        return append(body, gateway::test::key_of(which % 8U));
      default:
        return;
    }
  }
  void damage(Input& input) {
    auto& values = bench_.queue().values;
    if (values.empty()) return;
    auto at = values.begin();
    std::advance(at, input.number<std::uint8_t>() % values.size());
    const auto patch = input.bytes(input.number<std::uint8_t>() % 80U);
    if (at->second.size() >= patch.size()) std::ranges::copy(patch, at->second.begin());
    if (patch.size() % 4U == 1) at->second.resize(at->second.size() / 2);
  }
  void turn() {
    bench_.turn(2);
    std::array<std::byte, 65'536> part;
    ssize_t got = 0;
    while ((got = ::recv(socket_.get(), part.data(), part.size(), MSG_DONTWAIT)) > 0)
      replies_.take(std::span<const std::byte>(part).first(static_cast<std::size_t>(got)));
  }

  Bench bench_;
  UniqueFd socket_;
  UniqueFd file_{::memfd_create("fuzz", MFD_CLOEXEC)};
  Replies replies_;
  std::size_t inline_bytes_{0};
};

}  // namespace
}  // namespace akv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static const auto said_before = akv::set_event_sink(std::make_shared<akv::EventQueue>(1));
  akv::fuzz::Input input(data, size);
  akv::fuzz::Run run(input.number<std::uint8_t>());
  while (!input.empty())
    run.step(input);
  run.finish();
  return 0;
}
