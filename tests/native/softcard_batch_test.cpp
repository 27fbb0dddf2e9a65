// Stores that go to the file together: one write, an answer each, and whatever a kill or the medium makes of
// it.
#include "softcard_support.hpp"

namespace akv::softcard::test {
namespace {

class Batches : public FileModes {
 protected:
  struct Wanted {
    std::string key;
    std::size_t size;
    unsigned seed;
    std::uint8_t options{0};
  };
  static std::vector<nvme::Status> put_all(FileStore& store, const std::vector<Wanted>& all) {
    std::vector<PutRequest> puts;
    for (const Wanted& each : all)
      puts.push_back({key_of(each.key), value_of(each.size, each.seed), each.options});
    store.put_all(puts);
    std::vector<nvme::Status> statuses;
    for (const PutRequest& put : puts)
      statuses.push_back(put.status);
    return statuses;
  }
  static std::vector<Wanted> many(unsigned count, std::size_t size, unsigned seed) {
    std::vector<Wanted> all;
    for (unsigned i = 0; i < count; ++i)
      all.push_back({"key " + std::to_string(i), size + i, seed + i});
    return all;
  }
  static void expect_all(FileStore& store, const std::vector<Wanted>& all) {
    for (const Wanted& each : all)
      expect_value(store, each.key, each.size, each.seed);
  }
  [[nodiscard]] std::uint64_t writes() const { return faults_.all().front().hits; }
};
INSTANTIATE_TEST_SUITE_P(PageCacheAndDirect, Batches, ::testing::Bool());

TEST_P(Batches, RecordsSideBySideAreOneWrite) {
  const auto first = many(7, 500, 1);
  const auto all = many(60, 3000, 100);
  {
    FileStore store(wanted());
    fault("file-write delay ms=1");
    EXPECT_EQ(put_all(store, first), std::vector(7, nvme::kSuccess));
    EXPECT_EQ(writes(), 1U);
    EXPECT_EQ(put_all(store, all), std::vector(60, nvme::kSuccess)) << "over several segments";
    expect_all(store, all);
  }
  faults_.clear();
  FileStore store(wanted());
  EXPECT_EQ(store.stats().keys, 60U);
  expect_all(store, all);
}

TEST_P(Batches, EachStoreHasItsOwnAnswer) {
  FileStore store(wanted());
  ASSERT_EQ(store.put(key_of("there"), value_of(100, 1)), nvme::kSuccess);
  const auto statuses = put_all(store, {{"a", 700, 2},
                                        {"there", 10, 3, nvme::kStoreOnlyIfKeyIsNew},
                                        {"b", 0, 4},
                                        {"a", 900, 5},
                                        {"c", 10, 6, nvme::kStoreOnlyIfKeyExists},
                                        {"long", 64 * kKiB, 7},
                                        {"there", 20, 8, nvme::kStoreOnlyIfKeyExists},
                                        {"a", 40, 9, nvme::kStoreOnlyIfKeyIsNew},
                                        {"d", 5, 10}});
  EXPECT_EQ(statuses, (std::vector{nvme::kSuccess, nvme::kKvKeyExists, nvme::kSuccess, nvme::kSuccess,
                                   nvme::kKvKeyDoesNotExist, nvme::kCapacityExceeded, nvme::kSuccess,
                                   nvme::kKvKeyExists, nvme::kSuccess}));
  expect_value(store, "a", 900, 5);
  expect_value(store, "b", 0, 4);
  expect_value(store, "there", 20, 8);
  expect_value(store, "d", 5, 10);
  EXPECT_EQ(store.stats().keys, 4U);
}

TEST_P(Batches, OneThatTheMediumRefusesIsDoneOneByOne) {
  for (const auto* const words : {"file-write error error=EIO count=1", "file-write torn count=1"}) {
    faults_.clear();
    fs::remove(directory_.file());
    const auto older = many(6, 700, 1);
    const auto newer = many(6, 800, 50);
    const auto newest = many(6, 900, 90);
    {
      FileStore store(wanted());
      EXPECT_EQ(put_all(store, older), std::vector(6, nvme::kSuccess));
      fault(words);
      EXPECT_EQ(put_all(store, newer), std::vector(6, nvme::kSuccess));
      expect_all(store, newer);
      EXPECT_EQ(put_all(store, newest), std::vector(6, nvme::kSuccess));
    }
    faults_.clear();
    FileStore store(wanted());
    EXPECT_EQ(store.stats().keys, 6U);
    expect_all(store, newest);
  }
}

TEST_P(Batches, AMediumThatRefusesEverythingFailsThemAndOldValuesStay) {
  const auto older = many(6, 700, 1);
  const auto later = many(6, 300, 70);
  {
    FileStore store(wanted());
    EXPECT_EQ(put_all(store, older), std::vector(6, nvme::kSuccess));
    fault("file-write error error=EIO");
    EXPECT_EQ(put_all(store, many(6, 800, 50)), std::vector(6, nvme::kInternalError));
    expect_all(store, older);
    faults_.clear();
    EXPECT_EQ(put_all(store, later), std::vector(6, nvme::kSuccess));
    expect_all(store, later);
  }
  FileStore store(wanted());
  expect_all(store, later);
}

// A kill may cut the write of a batch anywhere: a pair is then of the batch or of before.
TEST_P(Batches, EveryPrefixOfAWriteIsOneOfItsStates) {
  const auto older = many(4, 300, 1);
  const auto newer = many(4, 310, 50);
  std::uint64_t begin = 0;
  {
    FileStore store(wanted());
    EXPECT_EQ(put_all(store, older), std::vector(4, nvme::kSuccess));
    fs::copy_file(directory_.file(), directory_.file("before"));
    EXPECT_EQ(put_all(store, newer), std::vector(4, nvme::kSuccess));
    const std::uint64_t align = GetParam() ? kDirectAlign : kRecordAlign;
    begin = kSuperblockBytes + align;
    for (const Wanted& each : older)
      begin += record_bytes(each.size, align);
  }
  auto torn = wanted();
  torn.path = directory_.file("torn");
  for (std::uint64_t kept = 0; kept <= 4 * record_bytes(320, GetParam() ? kDirectAlign : kRecordAlign);
       kept += GetParam() ? 997U : 97U) {
    fs::copy_file(directory_.file("before"), torn.path, fs::copy_options::overwrite_existing);
    write_at(torn.path, begin, read_at(directory_.file(), begin, kept));
    FileStore store(torn);
    ASSERT_EQ(store.stats().keys, 4U) << kept;
    bool of_before = false;
    for (std::size_t i = 0; i < 4; ++i) {
      const auto size = store.find(key_of(newer[i].key));
      const bool is_new = size == newer[i].size;
      ASSERT_FALSE(is_new && of_before) << "in their order, " << kept;
      of_before |= !is_new;
      const Wanted& expected = is_new ? newer[i] : older[i];
      ASSERT_NO_FATAL_FAILURE(expect_value(store, expected.key, expected.size, expected.seed));
    }
  }
}

}  // namespace
}  // namespace akv::softcard::test
