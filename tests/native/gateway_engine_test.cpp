// The whole engine with its threads, and workers that have no queue of their own.
#include "gateway/engine.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "gateway_support.hpp"
#include "kv/keys.hpp"

namespace akv::gateway::test {
namespace {

using wire::EntryStatus;
using wire::FrameStatus;
using wire::Opcode;

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "akv-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = name;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string loopback_address() {
  std::random_device random;
  return "127." + std::to_string(1 + random() % 250) + "." + std::to_string(random() % 250) + ".1";
}

Plan plan_of(std::vector<std::string> serials, std::uint64_t sequence) {
  Plan plan{.cluster_uuid = "test", .sequence = sequence, .num_dbs = 128, .fingerprint = {}, .slots = {}};
  for (std::uint8_t i = 0; i < serials.size(); ++i) {
    plan.slots.push_back(
        {.slot = i,
         .routable = true,
         .card = {.serial = serials[i],
                  .nqn = "nqn.2026-01.test:" + serials[i],
                  .uuid = {},
                  .paths = {{.transport = "tcp", .traddr = "127.0.0.1", .trsvcid = "4420"}}}});
  }
  std::vector<kv::PlannedCard> planned;
  for (const auto& slot : plan.slots)
    planned.push_back({slot.slot, slot.card.serial});
  plan.fingerprint = kv::plan_fingerprint(plan.num_dbs, planned);
  return plan;
}

// A blocking client over a real socket.
class BlockingClient {
 public:
  explicit BlockingClient(const std::string& unix_path) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, unix_path.c_str(), sizeof address.sun_path - 1);
    connect(reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  BlockingClient(const std::string& host, std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
    connect(reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }

  Reply call(const Bytes& request) {
    EXPECT_EQ(::send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    Bytes header(wire::kHeaderBytes);
    read_all(header);
    Reply reply{.header = wire::decode_header(std::span(header).first<wire::kHeaderBytes>()).value(),
                .body = {}};
    reply.body.resize(reply.header.body_len);
    read_all(reply.body);
    return reply;
  }

 private:
  void connect(const sockaddr* address, socklen_t size) {
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (::connect(socket_.get(), address, size) != 0) throw std::runtime_error("can't connect");
  }
  void read_all(Bytes& into) {
    std::size_t at = 0;
    while (at < into.size()) {
      const ssize_t got = ::recv(socket_.get(), into.data() + at, into.size() - at, 0);
      if (got <= 0) throw std::runtime_error("the gateway hung up");
      at += static_cast<std::size_t>(got);
    }
  }
  UniqueFd socket_;
};

class GatewayEngine : public testing::Test {
 protected:
  EngineConfig config() {
    EngineConfig made;
    made.backend = "kv-memory";
    made.bind_address = address;
    made.port = 5557;
    made.client_socket = directory.file("gateway.sock");
    made.shared_memory_size = 8U << 20U;
    made.workers = 2;
    return made;
  }
  TempDir directory;
  const std::string address = loopback_address();
};

std::uint64_t counter(const Engine& engine, std::string_view name) {
  for (const auto& [key, value] : engine.counters()) {
    if (key == name) return value;
  }
  throw std::out_of_range(std::string(name));
}

TEST_F(GatewayEngine, ManyClientsOnTwoWorkersAgree) {
  Engine engine(config());
  engine.start();
  EXPECT_TRUE(engine.apply_plan(plan_of({"A", "B"}, 1)));
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (unsigned id = 0; id < 6; ++id) {
    threads.emplace_back([&, id] {
      auto client =
          id % 2 == 0 ? BlockingClient(directory.file("gateway.sock")) : BlockingClient(address, 5557);
      EXPECT_EQ(client.call(frame(Opcode::hello, hello_body(0), 0, 1)).status(), FrameStatus::ok);
      for (unsigned round = 0; round < 50; ++round) {
        const Bytes payload = payload_of(100 + round, id * 1000 + round);
        auto put = Entries().add(key_of(id * 1000 + round), 0, 100 + round, wire::kRegionInline);
        append(put.body, payload);
        EXPECT_EQ(client.call(frame(Opcode::put, put.body, 1, 2)).entry(0, 4), EntryStatus::ok);
        const auto get = Entries().add(key_of(id * 1000 + round), 0, 500, wire::kRegionInline);
        Reply reply = client.call(frame(Opcode::get, get.body, 1, 3));
        EXPECT_EQ(reply.entry(0, 8), EntryStatus::ok);
        reply.body.erase(reply.body.begin(), reply.body.begin() + 8);
        if (reply.body == payload) ++good;
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(good, 300);
  EXPECT_EQ(counter(engine, "hits"), 300U);
  EXPECT_TRUE(engine.stop(500ms));
  EXPECT_EQ(counter(engine, "sessions"), 0U);
  EXPECT_FALSE(std::filesystem::exists(directory.file("gateway.sock")));
}

TEST_F(GatewayEngine, PlansChangeUnderTraffic) {
  Engine engine(config());
  engine.start();
  std::atomic<bool> done{false};
  std::thread traffic([&] {
    BlockingClient client(address, 5557);
    EXPECT_EQ(client.call(frame(Opcode::hello, hello_body(0), 0, 1)).status(), FrameStatus::ok);
    for (unsigned i = 0; !done; ++i)
      EXPECT_EQ(client.call(frame(Opcode::exists, key_of(i), 1, 2)).status(), FrameStatus::ok);
  });
  for (std::uint64_t sequence = 1; sequence <= 60; ++sequence) {
    const std::vector<std::string> serials =
        sequence % 3 == 0 ? std::vector<std::string>{}
                          : std::vector<std::string>{"A", sequence % 2 == 0 ? "B" : "C"};
    EXPECT_TRUE(engine.apply_plan(plan_of(serials, sequence)));
    EXPECT_EQ(engine.status().size(), serials.size());
  }
  EXPECT_FALSE(engine.apply_plan(plan_of({}, 60))) << "the same plan twice changes nothing";
  done = true;
  traffic.join();
  EXPECT_TRUE(engine.stop(500ms));
}

TEST_F(GatewayEngine, APlanThatNoWorkerAnsweredIsAppliedAgain) {
  Engine engine(config());
  EXPECT_THROW(engine.apply_plan(plan_of({"A"}, 1)), std::runtime_error) << "nothing runs yet";
  engine.start();
  EXPECT_TRUE(engine.apply_plan(plan_of({"A"}, 1))) << "nobody knew whether it was served";
  EXPECT_FALSE(engine.apply_plan(plan_of({"A"}, 1)));
  EXPECT_TRUE(engine.stop(500ms));
}

TEST_F(GatewayEngine, PlansThatContradictThemselvesAreRefused) {
  Engine engine(config());
  engine.start();
  const auto refused = [&](auto change) {
    Plan plan = plan_of({"A", "B"}, 1);
    change(plan);
    EXPECT_THROW(engine.apply_plan(plan), std::invalid_argument);
  };
  refused([](Plan& plan) { plan.fingerprint = "0000000000000000"; });
  refused([](Plan& plan) { plan.num_dbs = 0; });
  refused([](Plan& plan) { plan.slots[1].slot = 0; });
  refused([](Plan& plan) { plan.slots[1].slot = 8; });
  refused([](Plan& plan) { plan.slots[1].card.serial = "A"; });
  refused([](Plan& plan) { plan.slots[0].card.serial.clear(); });
  EXPECT_FALSE(engine.plan().has_value());
  EXPECT_TRUE(engine.stop(0ms));
}

TEST_F(GatewayEngine, SessionsAboveTheLimitAreRefused) {
  EngineConfig few = config();
  few.limits.max_sessions = 1;
  Engine engine(std::move(few));
  engine.start();
  BlockingClient first(address, 5557);
  EXPECT_EQ(first.call(frame(Opcode::hello, hello_body(0), 0, 1)).status(), FrameStatus::ok);
  BlockingClient second(address, 5557);
  EXPECT_THROW(second.call(frame(Opcode::hello, hello_body(0), 0, 1)), std::runtime_error);
  EXPECT_EQ(first.call(frame(Opcode::stats, {}, 0, 1)).status(), FrameStatus::ok);
  EXPECT_EQ(counter(engine, "sessions_refused"), 1U);
}

TEST_F(GatewayEngine, TakenAddressesAreOneClearLine) {
  const Engine engine(config());
  const auto why = [](EngineConfig wanted) {
    try {
      const Engine second(std::move(wanted));
    } catch (const ListenError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(why(config()).find("port 5557 on " + address + " is in use"), std::string::npos);
  EngineConfig other = config();
  other.bind_address = loopback_address();
  EXPECT_NE(why(other).find("in use by another gateway"), std::string::npos);
  other.client_socket = directory.file("a file");
  std::ofstream(other.client_socket) << "x";
  EXPECT_NE(why(other).find("is no socket"), std::string::npos);
  other.client_socket = "/" + std::string(120, 'x');
  EXPECT_NE(why(other).find("too long"), std::string::npos);
  other.client_socket.clear();
  EXPECT_EQ(why(other), "client_socket is empty; write the path of a Unix socket");
}

// Only a socket that takes the connection is another gateway's.
TEST_F(GatewayEngine, ASocketThatCantBeTriedIsNotSaidToBeInUse) {
  const std::string path = directory.file("gateway.sock");
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  const UniqueFd other(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(other.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  const auto why = [&path] {
    try {
      static_cast<void>(listen_unix(path));
    } catch (const ListenError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(why().find("Protocol wrong type for socket"), std::string::npos) << why();
  rlimit descriptors{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &descriptors), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = descriptors.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string told = why();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &descriptors), 0);
  EXPECT_NE(told.find("Too many open files"), std::string::npos) << told;
}

TEST_F(GatewayEngine, ASocketThatNobodyAnswersOnIsReplacedAndPrivate) {
  const std::string path = directory.file("gateway.sock");
  {
    const UniqueFd old(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, path.c_str(), sizeof name.sun_path - 1);
    ASSERT_EQ(::bind(old.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  }
  Engine engine(config());
  struct stat info{};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST(GatewayConfig, WhatCantWorkIsRefused) {
  EngineConfig none;
  none.workers = 0;
  EXPECT_THROW(Engine{none}, std::invalid_argument);
  EngineConfig cores;
  cores.cores = {0, 1};
  EXPECT_THROW(Engine{cores}, std::invalid_argument);
  EngineConfig spdk;
  spdk.backend = "kv-spdk";
  EXPECT_THROW(Engine{spdk}, std::invalid_argument);
}

// Two workers on threads of their own; only the second has a queue to the card.
TEST(GatewayWorkers, AWorkerWithoutAQueueIsServedByOneThatHasIt) {
  kv::init_crypto();
  SharedState shared({}, {}, 1U << 20U, 2);
  Worker first(0, shared);
  Worker second(1, shared);
  ScriptedCards cards(second.reactor(), 1);
  first.connect(cards, {&first, &second});
  second.connect(cards, {&first, &second});
  auto routing = std::make_shared<Routing>();
  routing->routable[0] = RoutableCard{.serial = "C0", .nqn = {}, .uuid = {}};
  routing->num_dbs = 128;
  first.set_routing(routing);

  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  first.adopt(UniqueFd(pair[1]), true);
  std::thread home([&] { first.reactor().run(); });
  std::thread executor([&] { second.reactor().run(); });

  const UniqueFd client(pair[0]);
  const auto call = [&](const Bytes& request) {
    EXPECT_EQ(::send(client.get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    Bytes reply(wire::kHeaderBytes);
    EXPECT_EQ(::recv(client.get(), reply.data(), reply.size(), MSG_WAITALL),
              static_cast<ssize_t>(reply.size()));
    Bytes body(load_le<std::uint32_t>(reply.data() + 4));
    if (!body.empty()) {
      EXPECT_GT(::recv(client.get(), body.data(), body.size(), MSG_WAITALL), 0);
    }
    return body;
  };
  call(frame(Opcode::hello, hello_body(64 * 4096), 0, 1));
  Bytes length;
  append(length, std::uint32_t{1000});
  call(frame(Opcode::alloc, length, 1, 2));
  for (unsigned i = 0; i < 200; ++i) {
    const Bytes entry = Entries().add(key_of(i), 0, 1000).body;
    EXPECT_EQ(load_le<std::uint32_t>(call(frame(Opcode::put, entry, 1, 3)).data()), 0U);
    EXPECT_EQ(load_le<std::uint32_t>(call(frame(Opcode::get, entry, 1, 4)).data()), 0U);
  }
  EXPECT_EQ(call(frame(Opcode::free, Bytes(8), 1, 5)).size(), 0U);
  // The last pin comes home by the other worker's post, after the reply.
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (shared.leased->load() != 0 && Clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_EQ(shared.leased->load(), 0U) << "pins did not come home";
  EXPECT_EQ(shared.counters[1].get(Counter::hits), 200U);
  first.reactor().stop();
  second.reactor().stop();
  home.join();
  executor.join();
}

}  // namespace
}  // namespace akv::gateway::test
