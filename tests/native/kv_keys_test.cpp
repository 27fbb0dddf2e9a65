#include "kv/keys.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "kv/hashing.hpp"
#include "vectors.hpp"

namespace akv::kv {
namespace {

using test::array_from_hex;
using test::number_from_hex;

class KvKeys : public testing::Test {
 protected:
  void SetUp() override { init_crypto(); }
  const nlohmann::json vectors = test::read_vectors("routing.json");
};

TEST_F(KvKeys, HashesFollowTheSharedVectors) {
  ASSERT_FALSE(vectors["fmix"].empty());
  for (const auto& row : vectors["fmix"])
    EXPECT_EQ(fmix(number_from_hex(row["x"])), number_from_hex(row["value"]));
  for (const auto& row : vectors["mix64"]) {
    EXPECT_EQ(mix64(number_from_hex(row["dialog"]), row["slot"].get<std::uint64_t>()),
              number_from_hex(row["value"]));
  }
}

TEST_F(KvKeys, DialogsRouteAsInTheSharedVectors) {
  ASSERT_FALSE(vectors["routes"].empty());
  for (const auto& row : vectors["routes"]) {
    SlotMask mask = 0;
    for (const unsigned slot : row["routable"])
      mask = static_cast<SlotMask>(mask | 1U << slot);
    const auto slot = slot_of(number_from_hex(row["dialog"]), mask);
    if (row["slot"].is_null()) {
      EXPECT_FALSE(slot.has_value());
    } else {
      EXPECT_EQ(slot, row["slot"].get<std::size_t>());
    }
  }
}

TEST_F(KvKeys, FingerprintsFollowTheSharedVectors) {
  ASSERT_FALSE(vectors["plans"].empty());
  for (const auto& row : vectors["plans"]) {
    std::vector<std::string> serials;
    for (const auto& slot : row["slots"])
      serials.push_back(slot["serial"]);
    std::vector<PlannedCard> cards;
    for (std::size_t i = 0; i < serials.size(); ++i)
      cards.push_back({row["slots"][i]["slot"].get<std::uint8_t>(), serials[i]});
    EXPECT_EQ(plan_fingerprint(row["num_dbs"].get<std::uint32_t>(), cards), row["fingerprint"]);
  }
}

TEST_F(KvKeys, CardKeysFollowTheSharedVectors) {
  ASSERT_FALSE(vectors["card_keys"].empty());
  for (const auto& row : vectors["card_keys"]) {
    const auto key = array_from_hex<EngineKey>(row["engine_key"]);
    const auto num_dbs = row["num_dbs"].get<std::uint32_t>();
    const KeyDeriver keys(row["namespace"].get<std::string>(), array_from_hex<Secret>(row["secret"]),
                          num_dbs);
    EXPECT_EQ(db_index(key, num_dbs), row["db"].get<std::uint32_t>());
    EXPECT_EQ(keys.value_key(key), array_from_hex<CardKey>(row["card_key"]));
  }
}

TEST_F(KvKeys, EverythingThatAKeyDependsOnChangesIt) {
  const EngineKey key{};
  const Secret secret{std::byte{1}};
  const CardKey plain = KeyDeriver("a", {}, 128).value_key(key);
  const KeyDeriver keys("a", {}, 128);
  std::vector<CardKey> others{
      KeyDeriver("b", {}, 128).value_key(key), KeyDeriver("a", secret, 128).value_key(key),
      KeyDeriver("a", {}, 64).value_key(key),  keys.value_key({std::byte{1}}),
      keys.segment_key(key, 1, 3, 100),        keys.segment_key(key, 2, 3, 100),
      keys.segment_key(key, 1, 4, 100),        keys.segment_key(key, 1, 3, 101)};
  others.push_back(plain);
  std::ranges::sort(others);
  EXPECT_EQ(std::ranges::adjacent_find(others), others.end());
}

TEST_F(KvKeys, NumDbsOfZeroIsRefused) {
  EXPECT_THROW(KeyDeriver("a", {}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace akv::kv
