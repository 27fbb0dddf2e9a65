#include "softcard/state_dir.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <tuple>

#include "base/events.hpp"

namespace akv::softcard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kRecordSuffix = ".card.json";
constexpr std::string_view kLockSuffix = ".card.lock";
constexpr std::string_view kSocketSuffix = ".card.sock";
constexpr std::string_view kStartLock = "starting.lock";
constexpr auto kStartLockTime = std::chrono::seconds(5);
constexpr int kControlBacklog = 8;

fs::path file_of(const fs::path& directory, const std::string& serial, std::string_view suffix) {
  return directory / (serial + std::string(suffix));
}

[[noreturn]] void fail(const char* what, const fs::path& path) {
  throw std::system_error(errno, std::generic_category(), std::string(what) + " " + path.string());
}

// Locks of an open file description: gone with the process, and testable without being taken.
struct flock whole_file(short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

UniqueFd open_lock(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!fd) fail("can't open", path);
  return fd;
}

bool try_lock(int fd) {
  auto lock = whole_file(F_WRLCK);
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool is_locked(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return false;
  auto lock = whole_file(F_WRLCK);
  return ::fcntl(fd.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// Starts in one directory take turns, so that two cards can't both find an id free.
UniqueFd take_start_turn(const fs::path& directory) {
  auto fd = open_lock(directory / kStartLock);
  const auto until = std::chrono::steady_clock::now() + kStartLockTime;
  while (!try_lock(fd.get())) {
    if (std::chrono::steady_clock::now() > until) {
      throw std::runtime_error("another card has been starting in " + directory.string() +
                               " for too long; is it stuck?");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fd;
}

CardRecord from_json(const Json& json) {
  CardRecord record{.id = json.at("id"),
                    .serial = json.at("serial"),
                    .nqn = json.at("nqn"),
                    .uuid = json.at("uuid"),
                    .addresses = {},
                    .running = false};
  for (const auto& address : json.at("addresses")) {
    const auto text = address.at("trsvcid").get<std::string>();
    std::uint16_t port = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    if (error != std::errc{} || end != text.data() + text.size())
      throw std::invalid_argument("trsvcid '" + text + "' is no port");
    record.addresses.push_back({.address = address.at("traddr"), .port = port});
  }
  return record;
}

// Adds what the file says to the list; nothing when it is gone since the directory was read.
void read_record(const fs::path& directory, const fs::path& path, CardList& list) {
  const auto name = path.filename().string();
  const auto serial = name.substr(0, name.size() - kRecordSuffix.size());
  const bool running = is_locked(file_of(directory, serial, kLockSuffix));
  try {
    std::ifstream file(path);
    if (!file && errno == ENOENT) return;
    if (!file) throw std::system_error(errno, std::generic_category(), "open");
    auto record = from_json(Json::parse(file));
    if (record.serial != serial) throw std::invalid_argument("it names serial '" + record.serial + "'");
    record.running = running;
    list.cards.push_back(std::move(record));
  } catch (const std::exception& error) {
    const auto* const remedy = running ? "; restart the card " : "; remove it, for no card runs with serial ";
    list.lost.push_back(
        {"card record " + path.string() + " can't be read (" + error.what() + ")" + remedy + serial,
         running});
  }
}

// The kernel takes at most 107 bytes of path: directories are deeper than that, descriptors are not.
class SocketPath {
 public:
  SocketPath(const fs::path& directory, const std::string& serial)
      : directory_(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    if (!directory_) fail("can't open directory", directory);
    const auto path =
        "/proc/self/fd/" + std::to_string(directory_.get()) + "/" + serial + std::string(kSocketSuffix);
    address_.sun_family = AF_UNIX;
    std::memcpy(address_.sun_path, path.c_str(), path.size() + 1);
  }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address_); }

 private:
  UniqueFd directory_;
  sockaddr_un address_{};
};

void remove_files(const fs::path& directory, const std::string& serial) {
  for (const auto suffix : {kRecordSuffix, kLockSuffix, kSocketSuffix})
    fs::remove(file_of(directory, serial, suffix));
}

}  // namespace

Json to_json(const CardRecord& record) {
  Json addresses = Json::array();
  for (const auto& address : record.addresses) {
    addresses.push_back(
        {{"transport", "tcp"}, {"traddr", address.address}, {"trsvcid", std::to_string(address.port)}});
  }
  return {{"id", record.id},
          {"serial", record.serial},
          {"nqn", record.nqn},
          {"uuid", record.uuid},
          {"addresses", addresses}};
}

CardList list_cards(const fs::path& directory) {
  CardList list;
  if (!fs::exists(directory)) return list;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().ends_with(kRecordSuffix)) read_record(directory, entry.path(), list);
  }
  std::ranges::sort(list.cards, [](const auto& left, const auto& right) {
    return std::tie(left.id, left.serial) < std::tie(right.id, right.serial);
  });
  return list;
}

// A record that can't be read keeps no other card from starting; this card's own is written anew.
CardSeat::CardSeat(fs::path directory, const CardRecord& record)
    : directory_(std::move(directory)), serial_(record.serial) {
  if (fs::create_directories(directory_)) fs::permissions(directory_, fs::perms::owner_all);
  const auto turn = take_start_turn(directory_);
  const auto list = list_cards(directory_);
  for (const auto& lost : list.lost)
    log_event(Level::warning, "card_record_unreadable", {{"reason", lost.message}});
  for (const auto& card : list.cards) {
    const bool same_serial = card.serial == serial_;
    if (!same_serial && card.id != record.id) continue;
    if (card.running) {
      throw std::runtime_error(std::string(same_serial ? "serial " + serial_ : "id " + record.id) +
                               " belongs to the running card " + card.id + " (serial " + card.serial +
                               ") in " + directory_.string() + "; stop it or choose another");
    }
    remove_files(directory_, card.serial);
  }
  lock_ = open_lock(file_of(directory_, serial_, kLockSuffix));
  if (!try_lock(lock_.get())) {
    throw std::runtime_error("a card with serial " + serial_ + " runs in " + directory_.string() +
                             "; stop it or choose another");
  }
  publish(record);
}

void CardSeat::publish(const CardRecord& record) const {
  const auto path = file_of(directory_, serial_, kRecordSuffix);
  const auto fresh = path.string() + ".new";
  const auto text = to_json(record).dump(2) + "\n";
  {
    const UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!fd) fail("can't write", fresh);
    if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      fail("can't write", fresh);
  }
  fs::rename(fresh, path);
}

UniqueFd CardSeat::listen_control() const {
  const auto path = file_of(directory_, serial_, kSocketSuffix);
  fs::remove(path);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) fail("can't make socket", path);
  // On the descriptor before bind(): the file never exists with wider rights.
  if (::fchmod(socket.get(), S_IRUSR | S_IWUSR) != 0) fail("can't protect socket", path);
  const SocketPath address(directory_, serial_);
  if (::bind(socket.get(), address.get(), sizeof(sockaddr_un)) != 0) fail("can't bind", path);
  if (::listen(socket.get(), kControlBacklog) != 0) fail("can't listen on", path);
  return socket;
}

UniqueFd connect_control(const fs::path& directory, const std::string& id) {
  const auto cards = list_cards(directory).cards;
  const auto card = std::ranges::find_if(
      cards, [&](const auto& candidate) { return candidate.id == id && candidate.serves(); });
  if (card == cards.end()) {
    throw std::runtime_error("no running card " + id + " in " + directory.string() +
                             "; see `akv-softcard list --state-dir " + directory.string() + "`");
  }
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketPath address(directory, card->serial);
  if (!socket || ::connect(socket.get(), address.get(), sizeof(sockaddr_un)) != 0) {
    fail("can't reach the control socket of card", id);
  }
  return socket;
}

bool card_runs(const fs::path& directory, const std::string& id) {
  const auto cards = list_cards(directory).cards;
  return std::any_of(cards.begin(), cards.end(),
                     [&](const auto& card) { return card.id == id && card.running; });
}

}  // namespace akv::softcard
