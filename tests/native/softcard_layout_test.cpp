// Which files a file store takes for its own, and that no number in one decides how much memory is taken.
#include <functional>

#include "softcard_support.hpp"

namespace akv::softcard::test {
namespace {

template <nvme::WireStruct T>
T read_struct(const fs::path& path, std::uint64_t offset) {
  const std::string raw = read_at(path, offset, sizeof(T));
  return nvme::read_wire<T>(std::as_bytes(std::span(raw)));
}

template <nvme::WireStruct T>
void write_struct(const fs::path& path, std::uint64_t offset, const T& value) {
  const auto raw = nvme::wire_bytes(value);
  write_at(path, offset, {reinterpret_cast<const char*>(raw.data()), raw.size()});
}

TEST(FileStore, AnInterruptedCreationIsDoneAgain) {
  const Directory directory;
  std::ofstream(directory.file(), std::ios::binary) << std::string(100000, '\0');
  FileStore store(spec(directory.file()));
  EXPECT_EQ(store.put(key_of("a"), value_of(100, 1)), nvme::kSuccess);
}

TEST(FileStore, ForeignFilesAreRefusedAndLeftAlone) {
  const Directory directory;
  const std::string text(10000, 'x');
  std::ofstream(directory.file(), std::ios::binary) << text;
  EXPECT_THROW(FileStore(spec(directory.file())), std::runtime_error);
  std::ifstream file(directory.file(), std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
  std::ofstream(directory.file("short"), std::ios::binary) << "xyz";
  EXPECT_THROW(FileStore(spec(directory.file("short"))), std::runtime_error);
  EXPECT_THROW(FileStore(spec(directory.file("tiny"), 10000)), std::runtime_error);
}

TEST(FileStore, AFileThatOnlyBeginsWithZerosIsLeftAlone) {
  const Directory directory;
  const std::string image = std::string(100'000, '\0') + "data of a disk's image" + std::string(9, '\0');
  std::ofstream(directory.file(), std::ios::binary) << image;
  EXPECT_THROW(FileStore(spec(directory.file())), std::runtime_error);
  std::ifstream file(directory.file(), std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), image);
}

TEST(FileStore, AFileThatWasCutIsRefused) {
  const Directory directory;
  {
    const FileStore made(spec(directory.file()));
  }
  const auto whole = fs::file_size(directory.file());
  for (const auto size : {whole - 1, whole / 2, kSuperblockBytes}) {
    fs::resize_file(directory.file(), size);
    try {
      const FileStore store(spec(directory.file()));
      ADD_FAILURE() << "opened with " << size << " bytes";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("it was cut"), std::string::npos) << error.what();
    }
  }
}

// A superblock whose checksum is right, and whose numbers would take all memory or lead out of the file.
TEST(FileStore, ALayoutThatDoesNotFollowFromTheCapacityIsRefused) {
  const Directory directory;
  {
    const FileStore made(spec(directory.file()));
  }
  const auto good = read_struct<Superblock>(directory.file(), 0);
  const auto refused = [&](const std::function<void(Superblock&)>& change) {
    Superblock bad = good;
    change(bad);
    bad.crc = crc32c(nvme::wire_bytes(bad).first(offsetof(Superblock, crc)));
    write_struct(directory.file(), 0, bad);
    try {
      const FileStore store(spec(directory.file()));
      ADD_FAILURE() << "opened";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("does not follow from its capacity"), std::string::npos)
          << error.what();
    }
  };
  refused([](Superblock& block) { block.segments = UINT32_MAX; });
  refused([](Superblock& block) { block.segment_bytes = 0; });
  refused([](Superblock& block) {
    block.segments = UINT32_MAX;
    block.segment_bytes = 0;
  });
  refused([](Superblock& block) { block.segment_bytes = std::uint64_t{1} << 60U; });
  refused([](Superblock& block) { block.max_value_bytes = UINT32_MAX; });
  refused([](Superblock& block) { block.max_value_bytes = 0; });
  write_struct(directory.file(), 0, good);
  EXPECT_NO_THROW(FileStore(spec(directory.file())));
}

// A table whose checksums are right tells of a value that no segment can hold: its records count instead.
TEST(FileStore, ATableThatCantBeIsNotBelieved) {
  const Directory directory;
  {
    FileStore store(spec(directory.file()));
    for (unsigned i = 0; i < 200; ++i)
      ASSERT_EQ(store.put(key_of(std::to_string(i)), value_of(3000, i)), nvme::kSuccess);
  }
  const auto block = read_struct<Superblock>(directory.file(), 0);
  const auto header = read_struct<SegmentHeader>(directory.file(), kSuperblockBytes);
  const auto end = kSuperblockBytes + block.segment_bytes;
  const auto records = read_struct<SegmentTrailer>(directory.file(), end - block.align).records;
  ASSERT_GT(records, 2U) << "the first segment is full";
  const auto table = end - tail_bytes(records, block.align);
  auto entry = read_struct<TableEntry>(directory.file(), table + sizeof(TableEntry));
  entry.value_bytes = UINT32_MAX;
  entry.crc = header_crc(entry, block.salt + header.sequence);
  write_struct(directory.file(), table + sizeof(TableEntry), entry);
  FileStore store(spec(directory.file()));
  EXPECT_EQ(store.stats().keys, 200U);
  EXPECT_EQ(store.stats().bytes, 200U * 3000U);
  for (unsigned i = 0; i < 200; ++i)
    expect_value(store, std::to_string(i), 3000, i);
}

TEST(FileStore, OneFileServesOneCard) {
  const Directory directory;
  const FileStore store(spec(directory.file()));
  EXPECT_THROW(FileStore(spec(directory.file())), std::runtime_error);
}

TEST(FileStore, LayoutsFitTheirCapacity) {
  for (const std::uint64_t capacity :
       {80 * kKiB, 1000 * kKiB, kKiB * kKiB, 64 * kKiB * kKiB, kKiB * kKiB * kKiB}) {
    CardFileSpec wanted = spec("unused", capacity);
    wanted.max_value_bytes = 8 * kKiB * kKiB;
    const auto plan = plan_layout(wanted);
    EXPECT_GE(plan.segments, 5U) << capacity;
    EXPECT_LE(kSuperblockBytes + plan.segments * plan.segment_bytes, capacity);
    EXPECT_GE(plan.segment_bytes, sizeof(SegmentHeader) + 2 * record_bytes(plan.max_value_bytes));
    EXPECT_GE(plan.segments * plan.segment_bytes, capacity / 2) << "little is wasted";
  }
}

}  // namespace
}  // namespace akv::softcard::test
