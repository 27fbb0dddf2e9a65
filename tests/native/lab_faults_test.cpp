// What goes wrong between host and target, against a target that no one here wrote (Linux nvmet), run by
// `make lab`.
#include <csignal>

#include "fabric_client.hpp"
#include "lab_proxy.hpp"
#include "lab_support.hpp"

namespace akv::lab {
namespace {

using fabric::test::GuardedBuffer;
using nvme::PduType;

struct Fault {
  const char* text;
  Proxy::Rule rule;
  bool data_digest{false};
  bool header_digest{false};
};

class Wire : public ::testing::TestWithParam<Fault> {};

// Goes through all states of an admin and an I/O queue until one of the connections ends, or a command fails;
// why it did.
std::string walk(Host& host, const Proxy& proxy, GuardedBuffer& in) {
  if (!host.bring_up()) return host.trouble;
  const auto queue = host.io_queue(1);
  if (queue == nullptr) return host.trouble;
  GuardedBuffer out(256U << 10U);
  for (const bool write : {true, false}) {
    const auto answer = queue->call(block(write ? kWrite : kRead, write ? out.vectors() : in.vectors(), 0));
    if (queue->closed) return *queue->closed;
    if (proxy.acted() && !Host::ok(answer)) return "status: " + told(answer);
  }
  return "nothing noticed";
}

TEST_P(Wire, IsNoticedAndTheNextConnectionWorks) {
  const Fault& fault = GetParam();
  row(fault.text);
  GuardedBuffer in(256U << 10U);
  std::string outcome;
  {
    Proxy proxy(setting("AKV_LAB_TRADDR"), setting("AKV_LAB_TRSVCID"), fault.rule);
    Host host({.port = proxy.port(),
               .header_digest = fault.header_digest ? DigestPolicy::require : DigestPolicy::off,
               .data_digest = fault.data_digest ? DigestPolicy::require : DigestPolicy::off});
    outcome = walk(host, proxy, in);
    EXPECT_TRUE(proxy.acted()) << "the state was not reached: " << outcome;
  }
  EXPECT_NE(outcome, "nothing noticed");
  EXPECT_TRUE(in.guards_intact());
  Host again;
  ASSERT_TRUE(again.bring_up()) << again.trouble;
  const auto queue = again.io_queue(1);
  ASSERT_NE(queue, nullptr) << again.trouble;
  EXPECT_TRUE(Host::ok(queue->call(block(kRead, in.vectors(), 0))));
  seen('"' + without_address(outcome) + "\"; a new connection works");
}

INSTANTIATE_TEST_SUITE_P(
    Cut, Wire,
    ::testing::Values(
        Fault{"cut before the ICReq arrives", {0, false, PduType::ic_req, 0}},
        Fault{"cut before the ICResp", {0, true, PduType::ic_resp, 0}},
        Fault{"cut within the ICResp", {0, true, PduType::ic_resp, 60}},
        Fault{"cut within the capsule of the admin queue's Connect", {0, false, PduType::capsule_cmd, 500}},
        Fault{"cut before the answer to the admin queue's Connect", {0, true, PduType::capsule_resp, 0}},
        Fault{"cut within the data of Identify", {0, true, PduType::c2h_data, 2000}},
        Fault{"cut before the I/O queue's ICResp", {1, true, PduType::ic_resp, 0}},
        Fault{"cut before the answer to the I/O queue's Connect", {1, true, PduType::capsule_resp, 0}},
        Fault{"cut before the R2T of a write", {1, true, PduType::r2t, 0}},
        Fault{"cut within the R2T of a write", {1, true, PduType::r2t, 10}},
        Fault{"cut within the H2CData of a write", {1, false, PduType::h2c_data, 100'000}},
        Fault{"cut within the C2HData of a read", {1, true, PduType::c2h_data, 100'000}}));

INSTANTIATE_TEST_SUITE_P(Damage, Wire,
                         ::testing::Values(Fault{"a bit of a read's data changes, data digests on",
                                                 {1, true, PduType::c2h_data, 1000, Proxy::Act::flip},
                                                 true,
                                                 false},
                                           Fault{"a bit of a write's data changes, data digests on",
                                                 {1, false, PduType::h2c_data, 1000, Proxy::Act::flip},
                                                 true,
                                                 false},
                                           Fault{"a bit of a response's header changes, header digests on",
                                                 {1, true, PduType::capsule_resp, 12, Proxy::Act::flip},
                                                 false,
                                                 true},
                                           Fault{"a bit of an R2T changes, header digests on",
                                                 {1, true, PduType::r2t, 12, Proxy::Act::flip},
                                                 false,
                                                 true},
                                           Fault{"a bit of a command changes, header digests on",
                                                 {1, false, PduType::capsule_cmd, 50, Proxy::Act::flip},
                                                 false,
                                                 true}));

TEST(Namespace, RemovedUnderIo) {
  row("a namespace is disabled under I/O and enabled again; the other one serves on");
  Guest guest;
  Host host;
  ASSERT_TRUE(host.bring_up(2)) << host.trouble;
  const auto first = host.io_queue(1);
  const auto second = host.io_queue(2);
  ASSERT_TRUE(first != nullptr && second != nullptr) << host.trouble;
  GuardedBuffer buffer(16384);
  GuardedBuffer other(16384);
  ASSERT_TRUE(Host::ok(first->call(block(kWrite, buffer.vectors(), 0))));
  for (std::uint32_t i = 0; i < 16; ++i)
    ASSERT_TRUE(first->submit(block(kRead, buffer.vectors(), 0), i));
  guest.enable_namespace(1, false);
  ASSERT_TRUE(first->run_until([&] { return first->responses.size() >= 16 || first->closed; }));
  EXPECT_FALSE(first->closed) << *first->closed;
  const auto gone = first->call(block(kRead, buffer.vectors(), 0));
  EXPECT_TRUE(gone.has_value());
  EXPECT_FALSE(Host::ok(gone));
  EXPECT_TRUE(Host::ok(second->call(block(kRead, other.vectors(), 0, 2))));
  guest.enable_namespace(1, true);
  EXPECT_TRUE(Host::ok(first->call(block(kRead, buffer.vectors(), 0))));
  seen("meanwhile " + told(gone) + "; the queue stays, and works again after");
}

// One Asynchronous Event Request at a time.
class Events {
 public:
  explicit Events(Queue& admin) : admin_(admin) { request(); }

  [[nodiscard]] bool told_within(std::chrono::milliseconds patience) {
    return admin_.run_until([this] { return admin_.responses.contains(kTag); }, patience);
  }
  // The event that was told; the next is asked for.
  nvme::AsyncEvent take() {
    const auto event = nvme::parse_async_event(admin_.responses[kTag].cqe.dw0);
    admin_.responses.erase(kTag);
    request();
    return event;
  }
  [[nodiscard]] bool read_log_page(std::uint8_t page) {
    std::array<std::byte, 4096> bytes;
    const iovec vector{bytes.data(), bytes.size()};
    return Host::ok(admin_.call({.sqe = nvme::make_get_log_page(page, sizeof bytes),
                                 .direction = Direction::from_target,
                                 .data = std::span(&vector, 1)}));
  }

 private:
  static constexpr std::uint32_t kTag = 7;
  void request() { EXPECT_TRUE(admin_.submit({.sqe = nvme::make_async_event_request()}, kTag)); }
  Queue& admin_;
};

TEST(Namespace, ItsChangesAreTold) {
  row("Asynchronous Event Requests: a namespace goes and comes; its log page is read in between, or not");
  Guest guest;
  Host host;
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  ASSERT_NE(host.id.oaes & nvme::kOaesNamespaceAttribute, 0U);
  const auto asked = host.admin->call({.sqe = nvme::make_set_async_events(nvme::kOaesNamespaceAttribute)});
  ASSERT_TRUE(Host::ok(asked)) << told(asked);
  Events events(*host.admin);
  guest.enable_namespace(2, false);
  ASSERT_TRUE(events.told_within(kPatience));
  const auto event = events.take();
  EXPECT_TRUE(event.namespace_changed());
  guest.enable_namespace(2, true);
  const bool unread = events.told_within(std::chrono::seconds(1));
  if (unread) events.take();
  ASSERT_TRUE(events.read_log_page(event.log_page));
  guest.enable_namespace(2, false);
  EXPECT_TRUE(events.told_within(kPatience));
  guest.enable_namespace(2, true);
  seen("type " + std::to_string(event.type) + ", information " + std::to_string(event.info) + ", log page " +
       std::to_string(event.log_page) + "; a second change is " + (unread ? "told" : "not told") +
       " before that page is read, and told after");
}

TEST(KeepAlive, AHostThatFallsSilentIsCutOff) {
  row("KATO 1 s, no Keep Alive sent");
  Host host({.kato_ms = 1000});
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  const TimePoint before = monotonic_now();
  EXPECT_TRUE(host.admin->run_until([&] { return host.admin->closed.has_value(); }));
  const auto took = std::chrono::duration_cast<std::chrono::seconds>(monotonic_now() - before);
  EXPECT_GE(took.count(), 1);
  seen("the target ends the connections after some seconds");
}

TEST(KeepAlive, AHostThatSendsItStays) {
  row("KATO 2 s, Keep Alive sent every 500 ms for 6 s");
  Host host({.kato_ms = 2000});
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  for (int i = 0; i < 12; ++i) {
    const auto answer = host.admin->call({.sqe = nvme::make_keep_alive()});
    ASSERT_TRUE(Host::ok(answer)) << told(answer) << host.admin->closed.value_or("");
    static_cast<void>(host.admin->run_until([&] { return host.admin->closed.has_value(); },
                                            std::chrono::milliseconds(500)));
    ASSERT_FALSE(host.admin->closed) << *host.admin->closed;
  }
  seen("stays connected; granularity (KAS) " + std::to_string(host.id.kas * 100) + " ms");
}

TEST(KeepAlive, WithoutATimerItIsRefused) {
  row("KATO 0, then Keep Alive");
  Host host({.kato_ms = 0});
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  const auto answer = host.admin->call({.sqe = nvme::make_keep_alive()});
  EXPECT_TRUE(answer.has_value());
  seen(told(answer));
}

TEST(KeepAlive, TheLongestTimeIsTaken) {
  row("KATO FFFFFFFFh");
  Host host({.kato_ms = 0xFFFFFFFF});
  const bool up = host.bring_up();
  EXPECT_TRUE(up || !host.trouble.empty());
  seen(up ? "taken" : "\"" + host.trouble + "\"");
}

// The machine stands still in the middle of a read: the deadline passes, Abort is sent, and what the target
// answers when it goes on is told apart.
TEST(Hung, ATargetThatStandsStill) {
  row("the target stands still (SIGSTOP) under a read; deadline, Abort, then it goes on");
  const auto machine = static_cast<pid_t>(std::stoi(setting("AKV_LAB_PID")));
  Host host;
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  const auto queue = host.io_queue(1);
  ASSERT_NE(queue, nullptr) << host.trouble;
  GuardedBuffer buffer(65536);
  ASSERT_TRUE(Host::ok(queue->call(block(kWrite, buffer.vectors(), 0))));
  ASSERT_EQ(::kill(machine, SIGSTOP), 0);
  ASSERT_TRUE(queue->submit(block(kRead, buffer.vectors(), 0), 3));
  EXPECT_FALSE(queue->run_until([&] { return queue->responses.contains(3) || queue->closed; },
                                std::chrono::seconds(1)));
  ASSERT_TRUE(host.admin->submit({.sqe = nvme::make_abort(1, queue->command_id(3))}, 4));
  ASSERT_EQ(::kill(machine, SIGCONT), 0);
  EXPECT_TRUE(queue->run_until([&] { return queue->responses.contains(3) || queue->closed; }));
  EXPECT_TRUE(host.admin->run_until([&] { return host.admin->responses.contains(4); }));
  ASSERT_FALSE(queue->closed) << *queue->closed;
  EXPECT_TRUE(buffer.guards_intact());
  const bool not_aborted = (host.admin->responses[4].cqe.dw0 & 1U) != 0;
  seen(std::string("the read is answered late: ") + told(queue->responses[3]) +
       "; Abort: " + (not_aborted ? "not aborted (DW0 1)" : "aborted"));
}

}  // namespace
}  // namespace akv::lab
