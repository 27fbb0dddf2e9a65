// Connect's refusals by a target that no one here wrote (Linux nvmet), run by `make lab`.
#include "lab_support.hpp"

namespace akv::lab {
namespace {

TEST(ConnectRefused, AnUnknownSubsystem) {
  row("Connect to an unknown subsystem");
  HostOptions options;
  options.subsystem_nqn += "-unknown";
  Host host(options);
  EXPECT_FALSE(host.bring_up());
  EXPECT_NE(host.trouble.find("sct 1, sc 0x82"), std::string::npos) << host.trouble;
  seen(host.trouble);
}

TEST(ConnectRefused, AHostThatIsNotAllowed) {
  row("Connect as a host that is not allowed, and as one that is");
  Guest guest;
  const std::string allowed = "nqn.2014-08.org.example:friend";
  guest.run("echo 0 >$subsystem/attr_allow_any_host && mkdir -p $target/hosts/" + allowed +
            " && ln -sf $target/hosts/" + allowed + " $subsystem/allowed_hosts/");
  Host stranger;
  EXPECT_FALSE(stranger.bring_up());
  EXPECT_NE(stranger.trouble.find("sct 1, sc 0x84"), std::string::npos) << stranger.trouble;
  Host known({.host_nqn = allowed});
  EXPECT_TRUE(known.bring_up()) << known.trouble;
  guest.run("rm $subsystem/allowed_hosts/" + allowed + " && echo 1 >$subsystem/attr_allow_any_host");
  seen(stranger.trouble + "; the allowed one is taken");
}

struct BadQueue {
  const char* text;
  nvme::ConnectCommand command;
  std::uint16_t cntlid;  // 0: the right one
};

class IoConnect : public ::testing::TestWithParam<BadQueue> {};

TEST_P(IoConnect, IsRefusedWithAStatus) {
  row(GetParam().text);
  Host host;
  ASSERT_TRUE(host.bring_up()) << host.trouble;
  const auto taken = host.io_queue(1);
  ASSERT_NE(taken, nullptr) << host.trouble;
  if (GetParam().cntlid != 0) host.cntlid = GetParam().cntlid;
  const auto queue = host.transport(32);
  ASSERT_TRUE(queue->open()) << *queue->closed;
  const auto answer = host.connect(*queue, GetParam().command);
  ASSERT_TRUE(answer) << queue->closed.value_or("silence");
  EXPECT_FALSE(Host::ok(answer));
  seen(told(answer) + ", DW0 " + std::to_string(answer->cqe.dw0));
}

INSTANTIATE_TEST_SUITE_P(
    Refusals, IoConnect,
    ::testing::Values(BadQueue{"an I/O queue with SQSIZE 0", {.qid = 2, .sqsize = 0}, 0},
                      BadQueue{"an I/O queue deeper than MQES", {.qid = 2, .sqsize = 2000}, 0},
                      BadQueue{"an I/O queue id beyond those there are", {.qid = 999, .sqsize = 31}, 0},
                      BadQueue{"an I/O queue id that is in use", {.qid = 1, .sqsize = 31}, 0},
                      BadQueue{"an I/O queue of an unknown controller", {.qid = 2, .sqsize = 31}, 0xFFF0}));

}  // namespace
}  // namespace akv::lab
