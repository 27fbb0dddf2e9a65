// The directory in which the cards of a host are found.
#include "softcard/state_dir.hpp"
#include "softcard_support.hpp"

namespace akv::softcard::test {
namespace {

CardRecord card(const std::string& id, const std::string& serial, std::vector<TcpEndpoint> addresses = {}) {
  return {.id = id, .serial = serial, .nqn = "nqn.a", .uuid = "u", .addresses = std::move(addresses)};
}

TEST(StateDir, AnIdIsTakenAsSoonAsItsCardStarts) {
  const Directory directory;
  const auto path = directory.file("cards");
  const CardSeat first(path, card("xdp0", "L0P0"));
  ASSERT_EQ(list_cards(path).cards.size(), 1U);
  EXPECT_FALSE(list_cards(path).cards[0].serves()) << "it has no address yet";
  EXPECT_THROW(CardSeat(path, card("xdp0", "L0P1")), std::runtime_error);
  EXPECT_THROW(CardSeat(path, card("xdp1", "L0P0")), std::runtime_error);
  const CardSeat other(path, card("xdp1", "L0P1"));
  first.publish(card("xdp0", "L0P0", {{.address = "127.0.0.1", .port = 4420}}));
  EXPECT_TRUE(list_cards(path).cards[0].serves());
}

TEST(StateDir, RecordsThatCantBeReadAreNamedAndHarmNoOther) {
  const Directory directory;
  const auto path = directory.file("cards");
  const CardSeat first(path, card("xdp0", "L0P0"));
  first.publish(card("xdp0", "L0P0", {{.address = "127.0.0.1", .port = 4420}}));
  const auto good = read_at(path / "L0P0.card.json", 0, fs::file_size(path / "L0P0.card.json"));
  auto bad_port = good;
  bad_port.replace(good.find("4420"), 4, "no");
  const std::vector<std::string> bad{"", "{", "[]", bad_port, good};  // the last one is another card's
  for (std::size_t i = 0; i < bad.size(); ++i)
    std::ofstream(path / ("BAD" + std::to_string(i) + ".card.json")) << bad[i];
  const CardSeat second(path, card("xdp1", "L0P1"));
  const auto list = list_cards(path);
  EXPECT_EQ(list.cards.size(), 2U);
  ASSERT_EQ(list.lost.size(), bad.size());
  for (const auto& lost : list.lost) {
    EXPECT_FALSE(lost.running);
    EXPECT_NE(lost.message.find("BAD"), std::string::npos) << lost.message;
    EXPECT_NE(lost.message.find("remove it"), std::string::npos) << lost.message;
  }
  const CardSeat own(path, card("xdp2", "BAD0"));
  EXPECT_EQ(list_cards(path).lost.size(), bad.size() - 1) << "written anew";
}

}  // namespace
}  // namespace akv::softcard::test
