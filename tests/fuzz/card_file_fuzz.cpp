// A card's file: stores, removals and reopenings, then damage; what is still there is the newest version. And
// forgery, with right checksums: what is there then is anybody's, but nothing breaks and no number in the
// file takes memory.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/events.hpp"
#include "input.hpp"
#include "softcard/file_store.hpp"

namespace akv::fuzz {
namespace {

using softcard::FileStore;
using softcard::Value;

constexpr std::uint64_t kCapacity = 160 << 10;

// Every version of a pair is told from the others by its bytes.
struct Version {
  std::uint32_t number;
  std::uint32_t size;
};

Value value_of(const Version& version) {
  auto bytes = softcard::allocate_bytes(version.size);
  for (std::uint32_t i = 0; i < version.size; ++i)
    bytes[i] = static_cast<std::byte>((version.number * 31 + i * 7) >> (i % 3 * 8));
  return {.bytes = std::move(bytes), .size = version.size};
}

class Card {
 public:
  Card() : path_("/dev/shm/akv-fuzz-" + std::to_string(::getpid())) { ::unlink(path_.c_str()); }
  ~Card() { ::unlink(path_.c_str()); }
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  void live(Input& input) {
    try {
      FileStore store(spec());
      live_with(store, input);
    } catch (const std::runtime_error&) {
      check(forged_, "only a forged file is refused");
    }
  }
  void live_with(FileStore& store, Input& input) {
    check_all(store);
    for (unsigned steps = input.number<std::uint8_t>(); steps > 0 && !input.empty(); --steps) {
      const auto what = input.number<std::uint8_t>();
      const auto name = static_cast<std::uint8_t>(what & 7U);
      if ((what & 0x40U) != 0) {
        store_together(store, input);
      } else if ((what & 0x18U) == 0) {
        static_cast<void>(store.remove(key_of(name)));
        newest_.erase(name);
      } else if ((what & 0x20U) != 0) {
        check_one(store, name);
      } else {
        const Version version{++last_, input.number<std::uint16_t>() % 9000U};
        if (store.put(key_of(name), value_of(version)) == nvme::kSuccess) newest_[name] = version;
      }
    }
    check_all(store);
  }
  // Any header with any fields, as only who can write to the file and knows its salt could make it.
  void forge(Input& input) {
    const UniqueFd file(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    const auto block = read<softcard::Superblock>(file.get(), 0);
    const auto segment = input.number<std::uint8_t>() % std::max(block.segments, 1U);
    const auto begin = softcard::kSuperblockBytes + segment * block.segment_bytes;
    const auto end = begin + block.segment_bytes;
    forged_ = true;
    switch (input.number<std::uint8_t>() % 5U) {
      case 0:
        return write(file.get(), 0, changed(block, input), 0, true);
      case 1:
        return forge<softcard::SegmentHeader>(file.get(), begin, block.salt, input);
      case 2:
        return forge<softcard::SegmentTrailer>(file.get(), end - block.align, block.salt, input);
      case 3: {
        const auto at = input.number<std::uint16_t>() * softcard::kRecordAlign;
        return forge<softcard::RecordHeader>(file.get(), begin + at % kCapacity, block.salt, input);
      }
      default: {
        const auto trailer = read<softcard::SegmentTrailer>(file.get(), end - block.align);
        const auto number = input.number<std::uint8_t>() % std::max(trailer.records, 1U);
        // The superblock may be a forged one, with an alignment of 0.
        const auto table = end - softcard::tail_bytes(trailer.records, std::max(block.align, 1U));
        return forge<softcard::TableEntry>(file.get(), table + number * sizeof(softcard::TableEntry),
                                           block.salt + trailer.sequence, input);
      }
    }
  }
  void damage(Input& input) {
    const UniqueFd file(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    for (unsigned wounds = input.number<std::uint8_t>() % 16; wounds > 0; --wounds) {
      const auto at = softcard::kSuperblockBytes + input.number<std::uint32_t>() % (kCapacity - 16'384);
      const auto bytes = input.bytes(input.number<std::uint16_t>() % 4096U);
      static_cast<void>(!::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)));
    }
  }

 private:
  [[nodiscard]] softcard::CardFileSpec spec() const {
    return {.path = path_, .serial = "L0P0", .capacity = kCapacity, .max_value_bytes = 8192};
  }
  static nvme::KvKey key_of(std::uint8_t name) {
    return *nvme::make_kv_key(std::array{std::byte{0x40}, static_cast<std::byte>(name)});
  }
  template <nvme::WireStruct T>
  static T read(int file, std::uint64_t at) {
    std::array<std::byte, sizeof(T)> raw{};
    static_cast<void>(!::pread(file, raw.data(), raw.size(), static_cast<off_t>(at)));
    return nvme::read_wire<T>(raw);
  }
  // Some bytes of it are the input's.
  template <nvme::WireStruct T>
  static T changed(const T& header, Input& input) {
    std::array<std::byte, sizeof(T)> raw{};
    nvme::write_wire(std::span(raw), header);
    const auto at = input.number<std::uint8_t>() % sizeof(T);
    const auto bytes = input.bytes(input.number<std::uint8_t>() % 9U);
    std::ranges::copy(bytes.first(std::min(bytes.size(), sizeof(T) - at)), raw.begin() + at);
    return nvme::read_wire<T>(raw);
  }
  template <nvme::WireStruct T>
  static void forge(int file, std::uint64_t at, std::uint64_t salt, Input& input) {
    write(file, at, changed(read<T>(file, at), input), salt, false);
  }
  template <nvme::WireStruct T>
  static void write(int file, std::uint64_t at, T header, std::uint64_t salt, bool plain) {
    const auto fields = nvme::wire_bytes(header).first(offsetof(T, crc));
    header.crc = plain ? crc32c(fields) : softcard::header_crc(header, salt);
    const auto raw = nvme::wire_bytes(header);
    if (at > kCapacity) return;
    static_cast<void>(!::pwrite(file, raw.data(), raw.size(), static_cast<off_t>(at)));
  }
  void check_one(FileStore& store, std::uint8_t name) {
    Value got;
    if (store.get(key_of(name), got) != nvme::kSuccess || forged_) return;
    const auto newest = newest_.find(name);
    check(newest != newest_.end(), "a pair that was removed does not come back");
    const Value wanted = value_of(newest->second);
    check(got.size == wanted.size && std::ranges::equal(got.view(), wanted.view()),
          "only the newest version");
  }
  void store_together(FileStore& store, Input& input) {
    std::vector<softcard::PutRequest> puts;
    std::vector<std::pair<std::uint8_t, Version>> versions;
    for (unsigned left = 1 + input.number<std::uint8_t>() % 9U; left > 0; --left) {
      const auto name = static_cast<std::uint8_t>(input.number<std::uint8_t>() & 7U);
      versions.emplace_back(name, Version{++last_, input.number<std::uint16_t>() % 3000U});
      puts.push_back({key_of(name), value_of(versions.back().second)});
    }
    store.put_all(puts);
    for (std::size_t i = 0; i < puts.size(); ++i) {
      if (puts[i].status == nvme::kSuccess) newest_[versions[i].first] = versions[i].second;
    }
  }
  void check_all(FileStore& store) {
    for (std::uint8_t name = 0; name < 8; ++name)
      check_one(store, name);
  }

  std::string path_;
  std::map<std::uint8_t, Version> newest_;
  std::uint32_t last_{0};
  bool forged_{false};
};

}  // namespace
}  // namespace akv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static const auto said_before = akv::set_event_sink(std::make_shared<akv::EventQueue>(1));
  akv::fuzz::Input input(data, size);
  akv::fuzz::Card card;
  const auto how = input.number<std::uint8_t>();
  for (unsigned lives = 1 + how % 4U; lives > 0; --lives) {
    card.live(input);
    const unsigned forgeries = (how & 4U) != 0 ? input.number<std::uint8_t>() % 8U : 0U;
    for (unsigned i = 0; i < forgeries; ++i)
      card.forge(input);
    card.damage(input);
  }
  card.live(input);
  return 0;
}
