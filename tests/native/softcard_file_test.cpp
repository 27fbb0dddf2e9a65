// The file under the file store: with and without the page cache, its tables, what recovery reads, and media
// that fail.
#include <map>

#include "softcard/key_index.hpp"
#include "softcard_support.hpp"

namespace akv::softcard::test {
namespace {

TEST(KeyIndex, IsAMapInOrderAndLittleMemory) {
  KeyIndex index;
  std::map<nvme::KvKey, std::uint32_t, KeyOrder> model;
  std::mt19937_64 source(5);
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < 30'000; ++i) {
      const std::uint64_t words[2] = {source(), source()};
      const auto key = *nvme::make_kv_key(std::as_bytes(std::span(words)));
      index.insert({.key = key, .unit = i});
      model[key] = i;
    }
    EXPECT_LT(index.memory_bytes(), model.size() * 64) << "bytes a pair, with keys in random order";
    for (int i = 0; i < 25'000; ++i) {
      const auto victim = model.lower_bound({.bytes = {static_cast<std::byte>(source())}, .length = 1});
      if (victim == model.end()) continue;
      index.erase(victim->first);
      model.erase(victim);
    }
    EXPECT_LT(index.memory_bytes(), 8192 + model.size() * 128) << "and after many went";
  }
  ASSERT_EQ(index.size(), model.size());
  auto expected = model.begin();
  index.walk({}, [&](const IndexEntry& entry) {
    EXPECT_EQ(entry.key, expected->first);
    EXPECT_EQ(entry.unit, expected->second);
    return ++expected != model.end();
  });
  for (const auto& [key, unit] : model) {
    ASSERT_EQ(index.find(key)->unit, unit);
    index.erase(key);
    ASSERT_EQ(index.find(key), nullptr);
  }
  EXPECT_EQ(index.size(), 0U);
  EXPECT_LT(index.memory_bytes(), 8192U);
}

INSTANTIATE_TEST_SUITE_P(PageCacheAndDirect, FileModes, ::testing::Bool());

TEST_P(FileModes, StoresReplacesRemovesAndComesBack) {
  std::map<std::string, std::pair<std::size_t, unsigned>> model;
  std::mt19937 source(17);
  for (int life = 0; life < 4; ++life) {
    FileStore store(wanted());
    for (const auto& [key, version] : model) {
      if (store.contains(key_of(key))) expect_value(store, key, version.first, version.second);
    }
    for (int step = 0; step < 200; ++step) {
      const auto key = std::to_string(source() % 40);
      if (source() % 6 == 0) {
        static_cast<void>(store.remove(key_of(key)));
        model.erase(key);
        continue;
      }
      model[key] = {source() % 16'000, static_cast<unsigned>(source())};
      ASSERT_EQ(store.put(key_of(key), value_of(model[key].first, model[key].second)), nvme::kSuccess);
    }
    for (unsigned i = 0; i < 40; ++i) {
      const auto key = std::to_string(i);
      if (!model.contains(key)) {
        ASSERT_FALSE(store.contains(key_of(key)));
      } else if (store.contains(key_of(key))) {
        expect_value(store, key, model[key].first, model[key].second);
      }
    }
  }
}

TEST_P(FileModes, RecoveryReadsTablesAndNotData) {
  const auto big = wanted(64 * kKiB * kKiB);
  std::uint64_t bytes = 0;
  {
    FileStore store(big);
    for (unsigned i = 0; i < 3500; ++i)
      ASSERT_EQ(store.put(key_of("k" + std::to_string(i)), value_of(16 * kKiB, i)), nvme::kSuccess);
    bytes = store.stats().bytes;
  }
  const FileStore store(big);
  EXPECT_EQ(store.stats().bytes, bytes);
  const auto segment = plan_layout(big).segment_bytes;
  const auto segments = plan_layout(big).segments;
  EXPECT_LT(store.bytes_read(), bytes / 20 + 2 * segment);
  EXPECT_LE(store.bytes_read(), segments * 3 * kDirectAlign + 2 * segment);
}

TEST_P(FileModes, AWriteThatFailsCostsItsPairAlone) {
  for (const auto* const words : {"file-write error error=EIO count=2", "file-write torn count=2"}) {
    faults_.clear();
    fs::remove(directory_.file());
    {
      FileStore store(wanted());
      ASSERT_EQ(store.put(key_of("before"), value_of(3000, 1)), nvme::kSuccess);
      fault(words);
      EXPECT_EQ(store.put(key_of("lost"), value_of(9000, 2)), nvme::kSuccess) << "the next segment takes it";
      EXPECT_EQ(store.put(key_of("after"), value_of(3000, 3)), nvme::kSuccess);
    }
    faults_.clear();
    FileStore store(wanted());
    expect_value(store, "before", 3000, 1);
    expect_value(store, "lost", 9000, 2);
    expect_value(store, "after", 3000, 3);
  }
}

TEST_P(FileModes, AMediumThatRefusesEverythingFailsThePutsAndKeepsWhatThereWas) {
  FileStore store(wanted());
  ASSERT_EQ(store.put(key_of("old"), value_of(3000, 1)), nvme::kSuccess);
  fault("file-write error error=EIO");
  EXPECT_EQ(store.put(key_of("old"), value_of(3000, 2)), nvme::kInternalError);
  EXPECT_EQ(store.put(key_of("new"), value_of(3000, 2)), nvme::kInternalError);
  expect_value(store, "old", 3000, 1);
  faults_.clear();
  fault("file-write error error=ENOSPC count=1");
  EXPECT_EQ(store.put(key_of("new"), value_of(3000, 2)), nvme::kCapacityExceeded);
  EXPECT_EQ(store.put(key_of("new"), value_of(3000, 3)), nvme::kSuccess);
  expect_value(store, "new", 3000, 3);
  expect_value(store, "old", 3000, 1);
}

TEST(Tally, TellsPowersOfTwo) {
  Tally tally;
  std::vector<std::uint64_t> told;
  for (int i = 0; i < 1000; ++i) {
    if (const auto times = tally.count(); times != 0) told.push_back(times);
  }
  EXPECT_EQ(told, (std::vector<std::uint64_t>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}));
}

TEST_P(FileModes, AReadThatFailsIsToldOnceAndThenTheKeyIsGone) {
  FileStore store(wanted());
  ASSERT_EQ(store.put(key_of("a"), value_of(3000, 1)), nvme::kSuccess);
  fault("file-read error count=1");
  Value value;
  EXPECT_EQ(store.get(key_of("a"), value), nvme::kKvUnrecoveredError);
  EXPECT_EQ(store.get(key_of("a"), value), nvme::kKvKeyDoesNotExist);
  EXPECT_EQ(store.stats().corrupt, 1U);
}

TEST_P(FileModes, MemoryThatRunsOutIsNoRot) {
  FileStore store(wanted());
  ASSERT_EQ(store.put(key_of("a"), value_of(3000, 1)), nvme::kSuccess);
  fault("file-read error error=ENOMEM count=1");
  Value value;
  EXPECT_THROW(static_cast<void>(store.get(key_of("a"), value)), std::bad_alloc);
  expect_value(store, "a", 3000, 1);
}

TEST_P(FileModes, ATableThatRotsIsReplacedByItsRecords) {
  std::uint64_t keys = 0;
  {
    FileStore store(wanted());
    for (unsigned i = 0; i < 60; ++i)
      ASSERT_EQ(store.put(key_of("k" + std::to_string(i)), value_of(8000, i)), nvme::kSuccess);
    ASSERT_EQ(store.put(key_of("k0"), value_of(500, 1000)), nvme::kSuccess);
    keys = store.stats().keys;
  }
  const auto plan = plan_layout(wanted());
  for (std::uint32_t segment = 0; segment < plan.segments; ++segment)
    write_at(directory_.file(), kSuperblockBytes + (segment + 1) * plan.segment_bytes - plan.align - 20,
             "rot");
  for (int life = 0; life < 2; ++life) {
    FileStore store(wanted());
    EXPECT_EQ(store.stats().keys, keys);
    expect_value(store, "k0", 500, 1000);
    expect_value(store, "k59", 8000, 59);
  }
  FileStore store(wanted());
  for (unsigned i = 0; i < 600; ++i)
    ASSERT_EQ(store.put(key_of("n" + std::to_string(i)), value_of(8000, i)), nvme::kSuccess);
  EXPECT_FALSE(store.contains(key_of("k1"))) << "evicted, although no table told of it";
}

// The table can't be read at one start, so that only the record is marked when its pair is replaced; at the
// next start the table is there again.
TEST_P(FileModes, AMarkThatTheTableMissedCounts) {
  {
    FileStore store(wanted());
    ASSERT_EQ(store.put(key_of("replaced"), value_of(900, 1)), nvme::kSuccess);
    ASSERT_EQ(store.put(key_of("removed"), value_of(900, 2)), nvme::kSuccess);
    for (unsigned i = 0; i < 40; ++i)
      ASSERT_EQ(store.put(key_of("k" + std::to_string(i)), value_of(8000, i)), nvme::kSuccess);
  }
  const auto newer = value_of(900, 1000);
  {
    const auto headers_and_trailer = plan_layout(wanted()).segments + 1;
    fault("file-read error count=1 after=" + std::to_string(headers_and_trailer));
    FileStore store(wanted());
    faults_.clear();
    expect_value(store, "replaced", 900, 1);
    ASSERT_EQ(store.put(key_of("replaced"), newer), nvme::kSuccess);
    ASSERT_EQ(store.remove(key_of("removed")), nvme::kSuccess);
  }
  const auto bytes = read_at(directory_.file(), 0, fs::file_size(directory_.file()));
  const auto rots = bytes.find(std::string(reinterpret_cast<const char*>(newer.bytes.get()), newer.size));
  ASSERT_NE(rots, std::string::npos);
  // Both headers: that of the newer version, and that of the removal behind it.
  const std::size_t record = record_bytes(900, GetParam() ? kDirectAlign : kRecordAlign);
  for (const auto header : {rots - sizeof(RecordHeader), rots - sizeof(RecordHeader) + record})
    write_at(directory_.file(), header, "rot");
  FileStore store(wanted());
  for (const auto* const key : {"replaced", "removed"}) {
    Value value;
    EXPECT_NE(store.get(key_of(key), value), nvme::kSuccess) << key;
    EXPECT_EQ(store.get(key_of(key), value), nvme::kKvKeyDoesNotExist) << key;
  }
}

// Its pairs could come back later, beside newer versions that did not mark them.
TEST_P(FileModes, ASegmentWhoseBeginningCannotBeReadKeepsTheCardFromStarting) {
  {
    const FileStore store(wanted());
  }
  fault("file-read error count=1 after=1");
  try {
    const FileStore store(wanted());
    FAIL() << "the card starts";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), EIO);
    EXPECT_NE(std::string(error.what()).find("where a segment begins; replace the medium"), std::string::npos)
        << error.what();
  }
}

TEST_P(FileModes, PairsThatAreRetrievedStayThroughManySegments) {
  FileStore store(wanted());
  for (unsigned i = 0; i < 30; ++i)
    ASSERT_EQ(store.put(key_of("hot" + std::to_string(i)), value_of(4000, i)), nvme::kSuccess);
  for (unsigned i = 0; i < 2000; ++i) {
    ASSERT_EQ(store.put(key_of("k" + std::to_string(i)), value_of(4000, i)), nvme::kSuccess);
    if (i % 20 != 0) continue;
    for (unsigned hot = 0; hot < 30; ++hot)
      expect_value(store, "hot" + std::to_string(hot), 4000, hot);
  }
  EXPECT_GT(store.stats().moves, 30U);
}

// However little of a record is value: what fills the file is the record.
TEST_P(FileModes, AFullFileOfShortValuesIsNotSparse) {
  FileStore store(wanted());
  for (unsigned i = 0; i < 30'000 && store.stats().evictions < 500; ++i)
    ASSERT_EQ(store.put(key_of("k" + std::to_string(i)), value_of(40, i)), nvme::kSuccess);
  EXPECT_GE(store.stats().evictions, 500U);
  EXPECT_EQ(store.stats().moves, 0U);
}

// Also where one segment alone holds more of them, and where the file has more from before.
TEST_P(FileModes, TheNumberOfPairsIsBoundedToo) {
  for (const std::uint64_t most : {200U, 50U}) {
    auto bounded = wanted();
    bounded.max_keys = most;
    FileStore store(bounded);
    for (unsigned i = 0; i < 1000; ++i) {
      ASSERT_EQ(store.put(key_of(std::to_string(i)), value_of(10, i)), nvme::kSuccess);
      ASSERT_LE(store.stats().keys, most);
      if (i % 100 == 0) expect_value(store, std::to_string(i), 10, i);
    }
    EXPECT_GE(store.stats().evictions, 1000 - most);
    EXPECT_EQ(store.stats().max_keys, most);
  }
  EXPECT_EQ(FileStore(wanted()).stats().max_keys, 65'536U);
  EXPECT_EQ(default_max_keys(std::uint64_t{1} << 40U), std::uint64_t{64} << 20U) << "64 Mi pairs a TiB";
}

TEST_P(FileModes, AFileOfTheOtherModeIsRefused) {
  {
    const FileStore made(wanted());
  }
  auto other = wanted();
  other.direct = !other.direct;
  try {
    const FileStore store(other);
    ADD_FAILURE() << "opened";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("--direct"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace akv::softcard::test
