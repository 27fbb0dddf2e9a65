// Block I/O against a target that no one here wrote (Linux nvmet), run by `make lab`.
#include <algorithm>
#include <functional>
#include <random>

#include "fabric_client.hpp"
#include "lab_support.hpp"

namespace akv::lab {
namespace {

using fabric::test::GuardedBuffer;
using fabric::test::pattern;

void fill(GuardedBuffer& buffer, std::uint64_t seed) {
  std::ranges::copy(pattern(buffer.bytes().size(), seed), buffer.bytes().begin());
}

bool same(std::span<const std::byte> one, std::span<const std::byte> other) {
  return std::ranges::equal(one, other);
}

// Writes `bytes` at `lba`, reads them into another buffer and compares.
void round_trip(Queue& queue, std::uint32_t bytes, std::uint64_t lba, std::uint32_t nsid = 1) {
  GuardedBuffer out(bytes);
  GuardedBuffer in(bytes, 5);
  fill(out, bytes + lba);
  const auto written = queue.call(block(kWrite, out.vectors(), lba, nsid));
  ASSERT_TRUE(Host::ok(written)) << bytes << " bytes: " << told(written) << queue.closed.value_or("");
  const auto read = queue.call(block(kRead, in.vectors(), lba, nsid));
  ASSERT_TRUE(Host::ok(read)) << bytes << " bytes: " << told(read) << queue.closed.value_or("");
  EXPECT_EQ(read->received, bytes);
  EXPECT_TRUE(same(in.bytes(), out.bytes())) << bytes << " bytes";
  EXPECT_TRUE(in.guards_intact());
}

struct Digests {
  const char* name;
  DigestPolicy header;
  DigestPolicy data;
};

class BlockIo : public ::testing::TestWithParam<Digests> {};

TEST_P(BlockIo, WritesAreReadBack) {
  row(std::string("digests ") + GetParam().name +
      ": identify, then write and read back 512 B, 4, 16, 16.5, 64 KiB, 1 MiB, 4 MiB");
  Host host({.header_digest = GetParam().header, .data_digest = GetParam().data});
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  EXPECT_EQ(nvme::trimmed(host.id.sn), setting("AKV_LAB_SERIAL"));
  const auto queue = host.io_queue(1);
  ASSERT_NE(queue, nullptr) << host.trouble;
  std::uint64_t lba = 0;
  for (const std::uint32_t bytes : {512U, 4096U, 16384U, 16896U, 65536U, 1U << 20U, 4U << 20U}) {
    ASSERT_NO_FATAL_FAILURE(round_trip(*queue, bytes, lba));
    lba += bytes / kBlockBytes;
  }
  seen("all equal; MDTS " + std::to_string(host.id.mdts) + ", in capsule up to " +
       std::to_string(host.in_capsule_bytes) + " B, MQES " + std::to_string(host.cap.mqes()));
}

INSTANTIATE_TEST_SUITE_P(Digests, BlockIo,
                         ::testing::Values(Digests{"off", DigestPolicy::off, DigestPolicy::off},
                                           Digests{"of headers", DigestPolicy::require, DigestPolicy::off},
                                           Digests{"of data", DigestPolicy::off, DigestPolicy::require},
                                           Digests{"of both", DigestPolicy::require, DigestPolicy::require}));

TEST(BlockLimits, ATransferBeyondTheTargetsLimitIsRefusedAndHarmsNothing) {
  row("a transfer of 4 MiB + 512 B (MDTS says no limit, the target has one)");
  Host host;
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  auto queue = host.io_queue(1);
  ASSERT_NE(queue, nullptr) << host.trouble;
  std::string told_of;
  for (const std::uint8_t opcode : {kRead, kWrite}) {
    GuardedBuffer buffer((4U << 20U) + kBlockBytes);
    const auto answer = queue->call(block(opcode, buffer.vectors(), 0));
    EXPECT_FALSE(Host::ok(answer));
    EXPECT_TRUE(answer || queue->closed);
    told_of += (opcode == kRead ? "read: " : "; write: ") + told(answer);
    if (queue->closed) queue = host.io_queue(static_cast<std::uint16_t>(opcode + 1));
    ASSERT_NE(queue, nullptr) << host.trouble;
    round_trip(*queue, 65536, 0);
  }
  seen(told_of + "; the next command works");
}

TEST(BlockLimits, AddressesOutsideAndUnknownNamespacesAreRefused) {
  row("a read past the end, of an unknown namespace, an unknown opcode");
  Host host;
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  const auto queue = host.io_queue(1);
  ASSERT_NE(queue, nullptr) << host.trouble;
  GuardedBuffer buffer(4096);
  const auto past = queue->call(block(kRead, buffer.vectors(), std::uint64_t{1} << 40U));
  const auto nowhere = queue->call(block(kRead, buffer.vectors(), 0, 77));
  Command odd = block(kRead, {}, 0);
  odd.direction = Direction::none;
  odd.sqe.opcode = 0x7B;
  const auto unknown = queue->call(odd);
  for (const auto& answer : {past, nowhere, unknown}) {
    EXPECT_TRUE(answer.has_value());
    EXPECT_FALSE(Host::ok(answer));
  }
  round_trip(*queue, 4096, 0);
  seen(told(past) + "; " + told(nowhere) + "; " + told(unknown));
}

TEST(BlockQueues, SqFlowControlDisabled) {
  row("Connect with SQ flow control disabled: reads end with C2HData's SUCCESS flag");
  Host host;
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  const auto queue = host.io_queue(1, 32, nvme::kConnectDisableSqFlow);
  ASSERT_NE(queue, nullptr) << host.trouble;
  for (const std::uint32_t bytes : {512U, 65536U, 1U << 20U})
    ASSERT_NO_FATAL_FAILURE(round_trip(*queue, bytes, 0));
  GuardedBuffer buffer(4096);
  const auto read = queue->call(block(kRead, buffer.vectors(), 0));
  ASSERT_TRUE(Host::ok(read));
  seen(read->synthetic ? "read without a response capsule, data equal" : "the target sends responses anyway");
}

TEST(BlockQueues, ManyQueuesAtOnce) {
  constexpr std::uint16_t kQueues = 16;
  row("16 I/O queues, a write and a read of 64 KiB under way on each");
  Host host;
  ASSERT_TRUE(host.bring_up(kQueues)) << host.trouble;
  ASSERT_GE(host.granted, kQueues);
  std::vector<std::unique_ptr<Queue>> queues;
  std::vector<GuardedBuffer> out;
  std::vector<GuardedBuffer> in;
  for (std::uint16_t i = 0; i < kQueues; ++i) {
    queues.push_back(host.io_queue(static_cast<std::uint16_t>(i + 1)));
    ASSERT_NE(queues.back(), nullptr) << host.trouble;
    fill(out.emplace_back(65536), i);
    in.emplace_back(65536);
  }
  for (const bool write : {true, false}) {
    const std::uint32_t tag = write ? 1 : 2;
    for (std::size_t i = 0; i < kQueues; ++i) {
      const auto& buffer = write ? out[i] : in[i];
      ASSERT_TRUE(queues[i]->submit(block(write ? kWrite : kRead, buffer.vectors(), i * 128), tag));
    }
    for (const auto& queue : queues) {
      ASSERT_TRUE(queue->run_until([&] { return queue->responses.contains(tag) || queue->closed; }));
      ASSERT_TRUE(queue->responses.contains(tag)) << queue->closed.value_or("");
    }
  }
  for (std::size_t i = 0; i < kQueues; ++i)
    EXPECT_TRUE(same(in[i].bytes(), out[i].bytes())) << "queue " << i + 1;
  seen("all equal; " + std::to_string(host.granted) + " queues granted for 16 asked");
}

TEST(BlockQueues, TheDeepestQueueIsFilled) {
  row("SQSIZE = MQES and as many reads of 4 KiB outstanding, answered in any order");
  Host host;
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  const auto depth = static_cast<std::uint16_t>(std::min<std::uint32_t>(host.cap.mqes(), 1023));
  const auto queue = host.io_queue(1, depth);
  ASSERT_NE(queue, nullptr) << host.trouble;
  GuardedBuffer out(std::size_t{depth} * 4096);
  fill(out, 5);
  for (std::uint32_t at = 0; at < out.bytes().size(); at += 65536) {
    const std::size_t size = std::min<std::size_t>(65536, out.bytes().size() - at);
    const iovec piece{out.bytes().data() + at, size};
    ASSERT_TRUE(Host::ok(queue->call(block(kWrite, std::span(&piece, 1), at / kBlockBytes))));
  }
  queue->responses.clear();
  GuardedBuffer in(out.bytes().size());
  for (std::uint32_t i = 0; i < depth; ++i) {
    const iovec piece{in.bytes().data() + std::size_t{i} * 4096, 4096};
    ASSERT_TRUE(queue->submit(block(kRead, std::span(&piece, 1), std::uint64_t{i} * 8), i)) << i;
  }
  const iovec one{in.bytes().data(), 512};
  EXPECT_FALSE(queue->submit(block(kRead, std::span(&one, 1), 0), 5000)) << "more than the queue holds";
  ASSERT_TRUE(queue->run_until([&] { return queue->responses.size() == depth || queue->closed; }));
  EXPECT_FALSE(queue->closed) << *queue->closed;
  EXPECT_TRUE(same(in.bytes(), out.bytes()));
  EXPECT_TRUE(in.guards_intact());
  seen(std::to_string(depth) + " outstanding, all equal; one more is refused by the initiator");
}

// Every write that the target acknowledged must be there after it came back; one that was under way may be
// there or not, but whole blocks only.
class RestartLoad {
 public:
  static constexpr std::uint32_t kPlaces = 64;
  static constexpr std::uint32_t kBytes = 16384;

  // Before anything else, so that every place holds what is known.
  void write_all(Queue& queue) {
    for (std::uint32_t place = 0; place < kPlaces; ++place) {
      GuardedBuffer out(kBytes);
      fill(out, ++written_);
      seeds_[place] = {written_};
      ASSERT_TRUE(Host::ok(queue.call(block(kWrite, out.vectors(), lba(place)))));
    }
  }
  // One turn: up to eight writes at once at random places; what is acknowledged is booked.
  void write_some(Queue& queue) {
    std::vector<std::uint32_t> places;
    std::vector<GuardedBuffer> buffers;
    queue.responses.clear();
    for (std::uint32_t i = 0; i < 8; ++i) {
      const auto place = static_cast<std::uint32_t>(random_() % kPlaces);
      if (std::ranges::find(places, place) != places.end()) continue;
      places.push_back(place);
      fill(buffers.emplace_back(kBytes), ++written_);
      seeds_[place].push_back(written_);
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      static_cast<void>(
          queue.submit(block(kWrite, buffers[i].vectors(), lba(places[i])), static_cast<std::uint32_t>(i)));
    }
    EXPECT_TRUE(queue.run_until([&] { return queue.responses.size() == places.size() || queue.closed; }));
    for (const auto& [tag, response] : queue.responses) {
      if (response.cqe.status() != nvme::kSuccess) continue;
      auto& seeds = seeds_[places[tag]];
      seeds = {seeds.back()};
      ++acknowledged_;
    }
  }
  void verify(Queue& queue) {
    for (const auto& [place, seeds] : seeds_) {
      GuardedBuffer in(kBytes);
      ASSERT_TRUE(Host::ok(queue.call(block(kRead, in.vectors(), lba(place))))) << queue.closed.value_or("");
      const bool known = std::ranges::any_of(
          seeds, [&](std::uint64_t seed) { return same(in.bytes(), pattern(kBytes, seed)); });
      EXPECT_TRUE(known || mixed(in.bytes(), seeds)) << "place " << place << " holds what was never written";
    }
  }
  [[nodiscard]] std::uint64_t acknowledged() const { return acknowledged_; }

 private:
  static std::uint64_t lba(std::uint32_t place) { return std::uint64_t{place} * (kBytes / kBlockBytes); }

  // Blocks of several writes that were not acknowledged (the last seeds); the first seed's was.
  static bool mixed(std::span<const std::byte> bytes, const std::vector<std::uint64_t>& seeds) {
    if (seeds.size() < 2) return false;
    for (std::size_t at = 0; at < bytes.size(); at += kBlockBytes) {
      const bool known = std::ranges::any_of(seeds, [&](std::uint64_t seed) {
        return same(bytes.subspan(at, kBlockBytes),
                    std::span<const std::byte>(pattern(kBytes, seed)).subspan(at, kBlockBytes));
      });
      if (!known) return false;
    }
    return true;
  }

  std::minstd_rand random_{7};
  std::map<std::uint32_t, std::vector<std::uint64_t>> seeds_;  // place: what may be there
  std::uint64_t written_{0};
  std::uint64_t acknowledged_{0};
};

TEST(BlockRestart, TheTargetGoesAndComesBackUnderVerifiedLoad) {
  row("the target's port goes away and comes back under a load that verifies, three times");
  Guest guest;
  RestartLoad load;
  std::string reasons;
  for (int round = 0; round < 3; ++round) {
    Host host;
    ASSERT_TRUE(host.bring_up()) << host.trouble;
    const auto queue = host.io_queue(1);
    ASSERT_NE(queue, nullptr) << host.trouble;
    ASSERT_NO_FATAL_FAILURE(round == 0 ? load.write_all(*queue) : load.verify(*queue));
    for (int turn = 0; turn < 10; ++turn)
      load.write_some(*queue);
    ASSERT_FALSE(queue->closed) << *queue->closed;
    guest.take_port_down();
    while (!queue->closed && !::testing::Test::HasFailure())
      load.write_some(*queue);
    ASSERT_TRUE(queue->closed);
    reasons = *queue->closed;
    Host during;
    EXPECT_FALSE(during.bring_up()) << "connected to a port that is down";
    guest.bring_port_up();
  }
  Host host;
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  const auto queue = host.io_queue(1);
  ASSERT_NE(queue, nullptr) << host.trouble;
  load.verify(*queue);
  seen(std::to_string(load.acknowledged()) + " writes acknowledged, none lost; the connection ends with \"" +
       without_address(reasons) + '"');
}

}  // namespace
}  // namespace akv::lab
