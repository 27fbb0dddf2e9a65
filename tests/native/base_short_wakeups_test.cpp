#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <variant>

#include "base/events.hpp"
#include "base/short_wakeups.hpp"

namespace akv {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A file that stands for the device, and a clock and a load that the test makes up.
class ShortWakeupsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const UniqueFd file(::mkstemp(path.data()));
    ASSERT_TRUE(file);
  }
  void TearDown() override { std::filesystem::remove(path); }
  // So long a time, of which the owner was busy for `part`.
  static void pass(ShortWakeups& wakeups, TimePoint& now, nanoseconds& busy, nanoseconds time,
                   nanoseconds part) {
    now += time;
    busy += part;
    wakeups.look(now, busy);
  }
  [[nodiscard]] std::string content() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string path{(std::filesystem::temp_directory_path() / "akv-wakeups-XXXXXX").string()};
  TimePoint now{std::chrono::hours(5)};
  nanoseconds busy{0};
};

TEST_F(ShortWakeupsTest, AreAskedForWhileTheOwnerIsBusyAndALittleLonger) {
  ShortWakeups wakeups(path, 7);
  pass(wakeups, now, busy, milliseconds(100), milliseconds(0));
  EXPECT_FALSE(wakeups.held()) << "nothing was done";
  pass(wakeups, now, busy, milliseconds(100), nanoseconds(999'999));
  EXPECT_FALSE(wakeups.held()) << "less than a hundredth";
  pass(wakeups, now, busy, milliseconds(100), milliseconds(1));
  EXPECT_TRUE(wakeups.held());
  EXPECT_EQ(content(), std::string("\x07\0\0\0", 4));
  pass(wakeups, now, busy, milliseconds(200), milliseconds(0));
  EXPECT_TRUE(wakeups.held()) << "a short pause";
  pass(wakeups, now, busy, milliseconds(100), milliseconds(0));
  EXPECT_FALSE(wakeups.held());
  pass(wakeups, now, busy, milliseconds(100), milliseconds(100));
  EXPECT_TRUE(wakeups.held()) << "busy again";
}

TEST_F(ShortWakeupsTest, AreAskedForAsSoonAsThereIsWork) {
  ShortWakeups wakeups(path, 0);
  pass(wakeups, now, busy, milliseconds(100), milliseconds(0));
  for (int i = 0; i < 9; ++i) {
    pass(wakeups, now, busy, nanoseconds(150'000), nanoseconds(100'000));
    EXPECT_FALSE(wakeups.held()) << i;
  }
  pass(wakeups, now, busy, nanoseconds(150'000), nanoseconds(100'000));
  EXPECT_TRUE(wakeups.held()) << "a millisecond of work";
}

TEST_F(ShortWakeupsTest, ADeviceThatRefusesIsToldOnceAndChangesNothing) {
  const auto queue = std::make_shared<EventQueue>(8);
  const auto before = set_event_sink(queue);
  std::array<ShortWakeups, 2> both{ShortWakeups(path + "/none", 0), ShortWakeups("/dev/full", 0)};
  for (ShortWakeups& wakeups : both) {
    for (int i = 0; i < 3; ++i) {
      pass(wakeups, now, busy, milliseconds(100), milliseconds(50));
      EXPECT_FALSE(wakeups.held());
    }
  }
  set_event_sink(before);
  const auto events = queue->take();
  ASSERT_EQ(events.size(), 2U);
  const auto field = [&](std::size_t event, std::size_t position) {
    return std::get<std::string>(events.at(event).fields.at(position).value);
  };
  EXPECT_EQ(events.front().name, "wakeups_not_shortened");
  EXPECT_EQ(field(0, 0), path + "/none");
  EXPECT_EQ(field(0, 1), "open: Not a directory");
  EXPECT_EQ(field(1, 0), "/dev/full");
  EXPECT_EQ(field(1, 1), "write: No space left on device");
}

TEST(ShortWakeupsOfAMachine, AskForWhatItsIdleDriverCanDo) {
  EXPECT_EQ(ShortWakeups::suitable_us("haltpoll"), 0);
  for (const auto* const driver : {"intel_idle", "acpi_idle", "none", ""})
    EXPECT_EQ(ShortWakeups::suitable_us(driver), 2) << driver;
}

}  // namespace
}  // namespace akv
