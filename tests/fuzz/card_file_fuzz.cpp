// A card's file: stores, removals and reopenings, then damage; what is still there is the newest version.
#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <string>

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
    FileStore store(spec());
    check_all(store);
    for (unsigned steps = input.number<std::uint8_t>(); steps > 0 && !input.empty(); --steps) {
      const auto what = input.number<std::uint8_t>();
      const auto name = static_cast<std::uint8_t>(what & 7U);
      if ((what & 0x18U) == 0) {
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
  void check_one(FileStore& store, std::uint8_t name) {
    Value got;
    if (store.get(key_of(name), got) != nvme::kSuccess) return;
    const auto newest = newest_.find(name);
    check(newest != newest_.end(), "a pair that was removed does not come back");
    const Value wanted = value_of(newest->second);
    check(got.size == wanted.size && std::ranges::equal(got.view(), wanted.view()),
          "only the newest version");
  }
  void check_all(FileStore& store) {
    for (std::uint8_t name = 0; name < 8; ++name)
      check_one(store, name);
  }

  std::string path_;
  std::map<std::uint8_t, Version> newest_;
  std::uint32_t last_{0};
};

}  // namespace
}  // namespace akv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static const auto said_before = akv::set_event_sink(std::make_shared<akv::EventQueue>(1));
  akv::fuzz::Input input(data, size);
  akv::fuzz::Card card;
  for (unsigned lives = 1 + input.number<std::uint8_t>() % 4; lives > 0; --lives) {
    card.live(input);
    card.damage(input);
  }
  card.live(input);
  return 0;
}
