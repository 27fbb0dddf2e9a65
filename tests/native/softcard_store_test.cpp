// The stores: bounds, eviction, and recovery of a file in every state that a kill may leave.
#include <array>

#include "base/bytes.hpp"
#include "softcard/memory_store.hpp"
#include "softcard_support.hpp"

namespace akv::softcard::test {
namespace {

TEST(Store, KeysAreInBytewiseOrder) {
  std::mt19937 source(3);
  const KeyOrder before;
  for (int i = 0; i < 20'000; ++i) {
    nvme::KvKey keys[2];
    for (auto& key : keys) {
      std::vector<std::byte> bytes(1 + source() % 16);
      for (auto& byte : bytes)
        byte = static_cast<std::byte>(source() % 3 * 127);
      key = *nvme::make_kv_key(bytes);
    }
    ASSERT_EQ(before(keys[0], keys[1]), keys[0] < keys[1]);
    ASSERT_FALSE(before(keys[0], keys[0]));
  }
}

TEST(MemoryStore, ReplacesRemovesAndCounts) {
  MemoryStore store(64 * kKiB, 16 * kKiB);
  EXPECT_EQ(store.put(key_of("a"), value_of(1000, 1)), nvme::kSuccess);
  EXPECT_EQ(store.put(key_of("a"), value_of(2000, 2)), nvme::kSuccess);
  EXPECT_EQ(store.put(key_of("b"), value_of(0, 0)), nvme::kSuccess);
  EXPECT_EQ(store.stats().keys, 2U);
  EXPECT_EQ(store.stats().bytes, 2000U);
  expect_value(store, "a", 2000, 2);
  expect_value(store, "b", 0, 0);
  EXPECT_EQ(store.remove(key_of("a")), nvme::kSuccess);
  EXPECT_EQ(store.remove(key_of("a")), nvme::kKvKeyDoesNotExist);
  Value value;
  EXPECT_EQ(store.get(key_of("a"), value), nvme::kKvKeyDoesNotExist);
  EXPECT_EQ(store.put(key_of("c"), value_of(16 * kKiB + 1, 1)), nvme::kCapacityExceeded);
}

TEST(MemoryStore, EvictsTheOldestAndGivesASecondChance) {
  MemoryStore store(10 * (1000 + MemoryStore::kPairBytes), 16 * kKiB);
  for (unsigned i = 0; i < 10; ++i)
    ASSERT_EQ(store.put(key_of("k" + std::to_string(i)), value_of(1000, i)), nvme::kSuccess);
  EXPECT_EQ(store.stats().evictions, 0U);
  expect_value(store, "k0", 1000, 0);
  ASSERT_EQ(store.put(key_of("x"), value_of(1000, 99)), nvme::kSuccess);
  EXPECT_TRUE(store.contains(key_of("k0")));
  EXPECT_FALSE(store.contains(key_of("k1")));
  // The chance is used up: ten more pairs, and k0 goes.
  for (unsigned i = 0; i < 10; ++i)
    ASSERT_EQ(store.put(key_of("y" + std::to_string(i)), value_of(1000, i)), nvme::kSuccess);
  EXPECT_FALSE(store.contains(key_of("k0")));
  EXPECT_EQ(store.stats().keys, 10U);
  EXPECT_EQ(store.stats().evictions, 11U);
}

TEST(MemoryStore, EvictionEndsWhenEverythingWasRetrieved) {
  MemoryStore store(4 * (1000 + MemoryStore::kPairBytes), 16 * kKiB);
  for (unsigned i = 0; i < 4; ++i) {
    ASSERT_EQ(store.put(key_of("k" + std::to_string(i)), value_of(1000, i)), nvme::kSuccess);
    expect_value(store, "k" + std::to_string(i), 1000, i);
  }
  ASSERT_EQ(store.put(key_of("big"), value_of(4 * 1000, 7)), nvme::kSuccess);
  EXPECT_EQ(store.stats().keys, 1U);
}

TEST(MemoryStore, AValueInUseOutlivesItsEviction) {
  MemoryStore store(2000, 1500);
  ASSERT_EQ(store.put(key_of("a"), value_of(1500, 1)), nvme::kSuccess);
  Value held;
  ASSERT_EQ(store.get(key_of("a"), held), nvme::kSuccess);
  ASSERT_EQ(store.put(key_of("b"), value_of(1500, 2)), nvme::kSuccess);
  EXPECT_FALSE(store.contains(key_of("a")));
  EXPECT_EQ(std::memcmp(held.bytes.get(), value_of(1500, 1).bytes.get(), 1500), 0);
}

TEST(MemoryStore, MillionsOfEmptyValuesAreBounded) {
  MemoryStore store(128 * 1000, 1000);
  for (unsigned i = 0; i < 5000; ++i)
    ASSERT_EQ(store.put(key_of(std::to_string(i)), value_of(0, 0)), nvme::kSuccess);
  EXPECT_EQ(store.stats().keys, 1000U);
}

TEST(FileStore, SurvivesReopening) {
  const Directory directory;
  {
    FileStore store(spec(directory.file()));
    for (unsigned i = 0; i < 20; ++i)
      ASSERT_EQ(store.put(key_of("k" + std::to_string(i)), value_of(i * 321, i)), nvme::kSuccess);
    ASSERT_EQ(store.put(key_of("k3"), value_of(777, 1000)), nvme::kSuccess);
    ASSERT_EQ(store.remove(key_of("k4")), nvme::kSuccess);
    ASSERT_EQ(store.remove(key_of("k4")), nvme::kKvKeyDoesNotExist);
  }
  for (int reopening = 0; reopening < 3; ++reopening) {
    FileStore store(spec(directory.file()));
    EXPECT_EQ(store.stats().keys, 19U);
    EXPECT_FALSE(store.contains(key_of("k4")));
    expect_value(store, "k3", 777, 1000);
    expect_value(store, "k0", 0, 0);
    expect_value(store, "k19", 19 * 321, 19);
  }
}

TEST(FileStore, StaysWithinItsCapacityAndKeepsWhatIsRead) {
  const Directory directory;
  const auto file = directory.file();
  FileStore store(spec(file));
  ASSERT_EQ(store.put(key_of("hot"), value_of(5000, 1)), nvme::kSuccess);
  for (unsigned i = 0; i < 2000; ++i) {
    ASSERT_EQ(store.put(key_of("k" + std::to_string(i)), value_of(3000, i)), nvme::kSuccess);
    expect_value(store, "hot", 5000, 1);
    if (i % 7 == 0) expect_value(store, "k" + std::to_string(i), 3000, i);
  }
  const auto stats = store.stats();
  EXPECT_GT(stats.evictions, 1000U);
  EXPECT_EQ(stats.keys + stats.evictions, 2001U);
  EXPECT_LE(fs::file_size(file), stats.capacity);
  EXPECT_GT(stats.bytes, stats.capacity / 2) << "most of the file holds live values";
  EXPECT_FALSE(store.contains(key_of("k0")));
}

TEST(FileStore, ReplacingPairsEvictsNoOthers) {
  const Directory directory;
  FileStore store(spec(directory.file(), 16 * kKiB * kKiB));
  for (unsigned i = 0; i < 30; ++i)
    ASSERT_EQ(store.put(key_of("cold" + std::to_string(i)), value_of(5000, i)), nvme::kSuccess);
  for (unsigned i = 0; i < 8000; ++i)
    ASSERT_EQ(store.put(key_of("hot" + std::to_string(i % 20)), value_of(5000, i)), nvme::kSuccess);
  EXPECT_EQ(store.stats().evictions, 0U);
  for (unsigned i = 0; i < 30; ++i)
    expect_value(store, "cold" + std::to_string(i), 5000, i);
}

// Against a plain map, with reopenings in between: whatever the store still has is the newest version.
TEST(FileStore, NeverGivesAnOldVersion) {
  const Directory directory;
  std::map<std::string, std::pair<std::size_t, unsigned>> model;
  std::mt19937 source(42);
  for (int reopening = 0; reopening < 12; ++reopening) {
    FileStore store(spec(directory.file()));
    for (const auto& [key, version] : model) {
      if (store.contains(key_of(key))) expect_value(store, key, version.first, version.second);
    }
    for (int step = 0; step < 150; ++step) {
      const auto key = std::to_string(source() % 60);
      if (source() % 5 == 0) {
        const auto status = store.remove(key_of(key));
        ASSERT_TRUE(status == nvme::kSuccess || status == nvme::kKvKeyDoesNotExist);
        model.erase(key);
        ASSERT_FALSE(store.contains(key_of(key)));
      } else {
        model[key] = {source() % 16000, static_cast<unsigned>(source())};
        ASSERT_EQ(store.put(key_of(key), value_of(model[key].first, model[key].second)), nvme::kSuccess);
      }
    }
    std::size_t present = 0;
    store.walk({}, [&](const nvme::KvKey& key) {
      const std::string text(reinterpret_cast<const char*>(key.bytes.data()), key.length);
      EXPECT_TRUE(model.contains(text)) << text;
      return ++present < 1000;
    });
    EXPECT_EQ(present, store.stats().keys);
  }
}

// A kill may cut the last write anywhere.
class TornRecord : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = 300;
  static constexpr std::uint64_t kLast = record_bytes(kSize);

  TornRecord() {
    FileStore store(spec(directory_.file()));
    EXPECT_EQ(store.put(key_of("first"), value_of(kSize, 1)), nvme::kSuccess);
    EXPECT_EQ(store.put(key_of("again"), value_of(kSize, 2)), nvme::kSuccess);
    fs::copy_file(directory_.file(), directory_.file("before"));
    EXPECT_EQ(store.put(key_of("again"), value_of(kSize, 3)), nvme::kSuccess);
  }
  // Where record `index` begins: all have one size.
  static constexpr std::uint64_t at(std::uint64_t index) {
    return kSuperblockBytes + sizeof(SegmentHeader) + index * kLast;
  }
  static constexpr std::uint64_t last_at() { return at(2); }

  // The file as a kill leaves it after `kept` bytes of the last record.
  fs::path copy_torn_at(std::uint64_t kept) const {
    const auto torn = directory_.file("torn");
    fs::copy_file(directory_.file("before"), torn, fs::copy_options::overwrite_existing);
    write_at(torn, last_at(), read_at(directory_.file(), last_at(), kept));
    return torn;
  }

  Directory directory_;
};

TEST_F(TornRecord, EveryPrefixIsDropped) {
  // The value's last byte is not zero, so that each of these is torn.
  for (std::uint64_t kept = 0; kept < sizeof(RecordHeader) + kSize; ++kept) {
    FileStore store(spec(copy_torn_at(kept)));
    ASSERT_EQ(store.stats().keys, 2U) << kept;
    expect_value(store, "first", kSize, 1);
    expect_value(store, "again", kSize, 2);
  }
}

TEST_F(TornRecord, AKillBetweenTheRecordAndTheMarkLeavesTheNewVersion) {
  const auto torn = copy_torn_at(kLast);
  {
    FileStore store(spec(torn));
    expect_value(store, "again", kSize, 3);
  }
  // Recovery marked the old version: it does not come back even where the new one is lost later.
  write_at(torn, last_at(), "rot");
  FileStore store(spec(torn));
  EXPECT_EQ(store.stats().keys, 1U);
  EXPECT_FALSE(store.contains(key_of("again")));
}

TEST_F(TornRecord, TheSpaceIsWrittenOverAndNothingOldComesBack) {
  for (const std::uint64_t kept : {std::uint64_t{1}, std::uint64_t{70}, kLast - 80}) {
    const auto torn = copy_torn_at(kept);
    {
      FileStore store(spec(torn));
      ASSERT_EQ(store.put(key_of("new"), value_of(10, 4)), nvme::kSuccess);
    }
    FileStore store(spec(torn));
    EXPECT_EQ(store.stats().keys, 3U);
    expect_value(store, "again", kSize, 2);
    expect_value(store, "new", 10, 4);
  }
}

TEST_F(TornRecord, ARottenHeaderCostsItsPairAloneAndNothingOldComesBack) {
  const auto file = directory_.file();
  for (std::uint64_t byte = 0; byte < sizeof(RecordHeader); ++byte) {
    const auto rotten = directory_.file("rotten");
    for (const std::uint64_t index : {0U, 1U, 2U}) {
      fs::copy_file(file, rotten, fs::copy_options::overwrite_existing);
      const auto old = read_at(rotten, at(index) + byte, 1);
      write_at(rotten, at(index) + byte, std::string(1, static_cast<char>(old[0] ^ 0x10)));
      for (int reopening = 0; reopening < 2; ++reopening) {
        FileStore store(spec(rotten));
        ASSERT_EQ(store.contains(key_of("first")), index != 0) << byte;
        ASSERT_EQ(store.contains(key_of("again")), index != 2) << byte;
        if (index != 0) expect_value(store, "first", kSize, 1);
        if (index != 2) expect_value(store, "again", kSize, 3);
        ASSERT_EQ(store.put(key_of("other"), value_of(kSize, 9)), nvme::kSuccess);
      }
    }
  }
}

TEST_F(TornRecord, ARemovedPairDoesNotReturnWhenTheRecordOfItsRemovalRots) {
  const auto file = directory_.file();
  {
    FileStore store(spec(file));
    ASSERT_EQ(store.remove(key_of("again")), nvme::kSuccess);
  }
  write_at(file, at(3), "rot");
  FileStore store(spec(file));
  EXPECT_FALSE(store.contains(key_of("again")));
  expect_value(store, "first", kSize, 1);
}

TEST_F(TornRecord, AVersionThatCouldNotBeReadOnceDoesNotReturn) {
  const auto file = directory_.file();
  const auto value_at = at(0) + sizeof(RecordHeader) + 10;
  const auto good = read_at(file, value_at, 3);
  {
    FileStore store(spec(file));
    write_at(file, value_at, "rot");
    Value value;
    ASSERT_EQ(store.get(key_of("first"), value), nvme::kKvUnrecoveredError);
    write_at(file, value_at, good);  // the medium thinks better of it
    ASSERT_EQ(store.put(key_of("first"), value_of(kSize, 7)), nvme::kSuccess);
  }
  write_at(file, at(3), "rot");
  FileStore store(spec(file));
  EXPECT_FALSE(store.contains(key_of("first")));
}

// The newest segment's header rots, so its number is unknown: were it given again to the same space, the old
// records there would count.
TEST_F(TornRecord, ARottenSegmentsNumberIsNotUsedAgain) {
  const auto file = directory_.file();
  write_at(file, kSuperblockBytes, "rot");
  {
    FileStore store(spec(file));
    EXPECT_EQ(store.stats().keys, 0U);
    ASSERT_EQ(store.put(key_of("other"), value_of(kSize, 9)), nvme::kSuccess);
  }
  FileStore store(spec(file));
  EXPECT_EQ(store.stats().keys, 1U);
  expect_value(store, "other", kSize, 9);
}

TEST_F(TornRecord, ValuesThatLookLikeRecordsAreNotTakenForOnes) {
  const auto file = directory_.file();
  {
    // What a hostile client might store: a record with a guessed salt, at the place where a scan would look
    // after the value's own record was torn.
    RecordHeader forged{};
    forged.key_length = 1;
    forged.sequence = 1;
    seal(forged, 0);
    auto bytes = allocate_bytes(sizeof forged);
    nvme::write_wire(std::span(bytes.get(), sizeof forged), forged);
    FileStore store(spec(file));
    ASSERT_EQ(store.put(key_of("bait"), {.bytes = std::move(bytes), .size = sizeof forged}), nvme::kSuccess);
  }
  write_at(file, last_at() + kLast, std::string(sizeof(RecordHeader), '\0'));
  FileStore store(spec(file));
  EXPECT_EQ(store.stats().keys, 2U);
}

// Random stores and removals over many segments and reopenings, then damage anywhere: what is still there is
// the newest version, and of what was not damaged nothing is missing but by eviction.
TEST(FileStore, DamageAnywhereNeverGivesAnOldVersion) {
  const Directory directory;
  std::mt19937 source(7);
  for (int round = 0; round < 30; ++round) {
    const auto file = directory.file();
    fs::remove(file);
    std::map<std::string, std::pair<std::size_t, unsigned>> model;
    for (int life = 0; life < 3; ++life) {
      FileStore store(spec(file, 300 * kKiB));
      for (int step = 0; step < 60; ++step) {
        const auto key = std::to_string(source() % 20);
        if (source() % 4 == 0) {
          static_cast<void>(store.remove(key_of(key)));
          model.erase(key);
          continue;
        }
        model[key] = {source() % 8000, static_cast<unsigned>(source())};
        ASSERT_EQ(store.put(key_of(key), value_of(model[key].first, model[key].second)), nvme::kSuccess);
      }
    }
    const auto size = fs::file_size(file);
    for (int wound = 0; wound < 4; ++wound) {
      const std::size_t length = 1 + source() % 5000;
      const auto where = kSuperblockBytes + source() % (size - kSuperblockBytes - length);
      write_at(file, where, std::string(length, static_cast<char>(source())));
    }
    for (int reopening = 0; reopening < 2; ++reopening) {
      FileStore store(spec(file, 300 * kKiB));
      for (unsigned i = 0; i < 20; ++i) {
        const auto key = std::to_string(i);
        Value got;
        if (store.get(key_of(key), got) != nvme::kSuccess) continue;
        ASSERT_TRUE(model.contains(key)) << key << " was removed, round " << round;
        expect_value(store, key, model[key].first, model[key].second);
      }
    }
  }
}

TEST(FileStore, RotIsReportedOnceAndThenGone) {
  const Directory directory;
  FileStore store(spec(directory.file()));
  ASSERT_EQ(store.put(key_of("a"), value_of(1000, 1)), nvme::kSuccess);
  {
    std::fstream rot(directory.file(), std::ios::in | std::ios::out | std::ios::binary);
    rot.seekp(kSuperblockBytes + sizeof(SegmentHeader) + sizeof(RecordHeader) + 500);
    rot << "x!";
  }
  Value value;
  EXPECT_EQ(store.get(key_of("a"), value), nvme::kKvUnrecoveredError);
  EXPECT_EQ(store.get(key_of("a"), value), nvme::kKvKeyDoesNotExist);
  EXPECT_EQ(store.stats().corrupt, 1U);
  EXPECT_EQ(store.stats().bytes, 0U);
}

}  // namespace
}  // namespace akv::softcard::test
