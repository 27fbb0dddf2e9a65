// akv-softcard: an NVMe/TCP card in software, and the card CLI of a host that has such cards.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.hpp"
#include "softcard/card.hpp"
#include "softcard/control.hpp"
#include "softcard/faults.hpp"
#include "softcard/options.hpp"
#include "softcard/state_dir.hpp"

namespace {

using namespace akv::softcard;
using Json = nlohmann::ordered_json;

constexpr const char* kDefaultStateDir = "/run/akv/cards";
constexpr auto kStopTime = std::chrono::seconds(15);
constexpr int kUsageError = 2;
constexpr std::uint64_t kLeastCapacity = std::uint64_t{64} << 10U;
constexpr std::uint64_t kLeastValue = std::uint64_t{4} << 10U;
constexpr std::uint64_t kLeastCapsule = std::uint64_t{4} << 10U;
constexpr std::uint64_t kLongestCapsule = kMaxH2cDataBytes;  // holds up other commands no longer than H2CData
constexpr std::uint64_t kLongestValue = std::uint64_t{1} << 30U;

// Values as typed; turned into a card by to_options().
struct ServeArguments {
  std::string id;
  std::string serial;
  std::string nqn;
  std::string listen;
  std::string uuid;
  std::string state_dir{kDefaultStateDir};
  std::string capacity;
  std::string file;
  bool direct{false};
  std::uint16_t file_readers{8};
  std::uint64_t max_keys{0};
  std::string max_value{"8M"};
  std::string in_capsule{"260K"};
  std::string receive_memory{"128M"};
  std::uint16_t max_queues{64};
  std::uint32_t max_connections{1024};
  std::string digests{"allow"};
  std::uint32_t handshake_timeout_ms{5000};
  std::uint32_t stall_timeout_ms{30000};
  bool long_wakeups{false};
  bool allow_network{false};
};

void add_state_dir(CLI::App& command, std::string& state_dir) {
  command.add_option("--state-dir", state_dir, "Directory of the host's card records")
      ->envname("AKV_SOFTCARD_STATE_DIR")
      ->capture_default_str();
}

void add_serve(CLI::App& app, ServeArguments& arguments) {
  auto& serve = *app.add_subcommand("serve", "Run one card until SIGTERM");
  serve.add_option("--id", arguments.id, "Name of the card on this host, such as xdp0")->required();
  serve.add_option("--serial", arguments.serial, "Serial number of the subsystem: the card's identity")
      ->required();
  serve.add_option("--nqn", arguments.nqn, "NVMe qualified name of the subsystem")->required();
  serve.add_option("--listen", arguments.listen, "ADDRESS:PORT; port 0 takes a free one")->required();
  serve.add_option("--capacity", arguments.capacity, "Bytes, with K, M, G or T; beyond it the card evicts")
      ->required();
  serve.add_option("--uuid", arguments.uuid, "UUID of the namespace (default: derived from NQN and serial)");
  add_state_dir(serve, arguments.state_dir);
  serve.add_option("--file", arguments.file,
                   "Keep values in this file or block device, which survives a restart (default: in memory)");
  serve.add_flag("--direct", arguments.direct, "Past the page cache (O_DIRECT); needs --file");
  serve.add_option("--file-readers", arguments.file_readers, "Threads that read the file")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  serve
      .add_option("--max-keys", arguments.max_keys,
                  "Pairs in the file, each of which takes up to 64 bytes of memory (default: one for each "
                  "16 KiB of the capacity, at least 65536)")
      ->check(CLI::Range(std::uint64_t{1024}, std::uint64_t{1} << 36U));
  serve.add_option("--max-value", arguments.max_value, "Longest value in bytes")->capture_default_str();
  serve
      .add_option(
          "--in-capsule", arguments.in_capsule,
          "Bytes of data that a command of an I/O queue may carry in its capsule: a store of that size "
          "needs no R2T")
      ->capture_default_str();
  serve.add_option("--max-queues", arguments.max_queues, "I/O queues of one controller")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  serve.add_option("--max-connections", arguments.max_connections, "Connections at once, over all hosts")
      ->check(CLI::Range(2, 65536))
      ->capture_default_str();
  serve
      .add_option("--receive-memory", arguments.receive_memory, "Memory for values being received, in bytes")
      ->capture_default_str();
  serve
      .add_option("--digests", arguments.digests,
                  "Header and data digests: where the host asks, or demanded of it")
      ->check(CLI::IsMember({"allow", "require"}))
      ->capture_default_str();
  serve
      .add_option("--handshake-timeout-ms", arguments.handshake_timeout_ms,
                  "From accept to a successful Connect")
      ->check(CLI::Range(10, 600000))
      ->capture_default_str();
  serve
      .add_option("--stall-timeout-ms", arguments.stall_timeout_ms,
                  "For one PDU or 1 MiB of a transfer to move on")
      ->check(CLI::Range(10, 600000))
      ->capture_default_str();
  serve.add_flag(
      "--long-wakeups", arguments.long_wakeups,
      "Let idle cores sleep deeply also while the card is busy (no request to /dev/cpu_dma_latency)");
  serve.add_flag(
      "--allow-network", arguments.allow_network,
      "Listen on an address that is not loopback; NVMe/TCP here has neither encryption nor authentication");
}

TcpEndpoint listen_endpoint(const std::string& text) {
  try {
    return parse_endpoint(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("listen ") + error.what());
  }
}

std::uint64_t size_between(const char* option, const std::string& text, std::uint64_t least,
                           std::uint64_t most, const char* rule) {
  const auto size = parse_bytes(option, text);
  if (size >= least && size <= most) return size;
  throw std::invalid_argument(std::string(option) + " '" + text + "' must be " + rule);
}

// IOCCSZ counts in units of 16 bytes.
std::uint32_t capsule_size(const std::string& text) {
  constexpr const char* rule = "4K to 1M, a multiple of 16 bytes";
  const auto size = size_between("in-capsule", text, kLeastCapsule, kLongestCapsule, rule);
  if (size % 16 == 0) return static_cast<std::uint32_t>(size);
  throw std::invalid_argument("in-capsule '" + text + "' must be " + rule);
}

ServeOptions to_options(const ServeArguments& arguments) {
  check_card_id(arguments.id);
  check_serial(arguments.serial);
  check_nqn(arguments.nqn);
  ServeOptions options{
      .card = {}, .listen = listen_endpoint(arguments.listen), .state_dir = arguments.state_dir};
  if (!is_loopback(options.listen) && !arguments.allow_network) {
    throw std::invalid_argument("listen " + options.listen.text() +
                                " is not a loopback address; add --allow-network if the network is trusted");
  }
  auto& card = options.card;
  card.id = arguments.id;
  card.serial = arguments.serial;
  card.nqn = arguments.nqn;
  card.uuid = arguments.uuid.empty() ? derive_uuid(card.nqn, card.serial) : parse_uuid(arguments.uuid);
  card.capacity = size_between("capacity", arguments.capacity, kLeastCapacity, UINT64_MAX, "at least 64K");
  if (!arguments.file.empty()) card.file = arguments.file;
  if (arguments.direct && !card.file)
    throw std::invalid_argument("direct needs --file: memory has no medium");
  card.direct = arguments.direct;
  card.file_readers = arguments.file_readers;
  card.max_keys = arguments.max_keys;
  card.max_value_bytes = static_cast<std::uint32_t>(
      size_between("max-value", arguments.max_value, kLeastValue, kLongestValue, "4K to 1G"));
  card.in_capsule_bytes = capsule_size(arguments.in_capsule);
  card.max_queues = arguments.max_queues;
  card.max_connections = arguments.max_connections;
  card.receive_bytes = parse_bytes("receive-memory", arguments.receive_memory);
  card.require_digests = arguments.digests == "require";
  card.short_wakeups = !arguments.long_wakeups;
  card.handshake_timeout = std::chrono::milliseconds(arguments.handshake_timeout_ms);
  card.stall_timeout = std::chrono::milliseconds(arguments.stall_timeout_ms);
  return options;
}

const char* state_of(const CardRecord& card) {
  return card.serves() ? "running" : "stopped";
}

// A living card that is left out would be taken for one that is gone: then there is no list.
std::vector<CardRecord> cards_of(const std::string& state_dir) {
  auto listed = list_cards(state_dir);
  for (const auto& lost : listed.lost) {
    if (lost.running) throw std::runtime_error(lost.message);
    std::cerr << "akv-softcard: " << lost.message << "\n";
  }
  return std::move(listed.cards);
}

void print_cards(const std::string& state_dir, bool json) {
  const auto cards = cards_of(state_dir);
  if (json) {
    Json list = Json::array();
    for (const auto& card : cards) {
      list.push_back(to_json(card));
      list.back()["state"] = state_of(card);
    }
    std::cout << Json{{"cards", list}}.dump(2) << "\n";
    return;
  }
  std::printf("%-16s %-20s %-8s %-24s %s\n", "ID", "SERIAL", "STATE", "ADDRESS", "NQN");
  for (const auto& card : cards) {
    const auto address = card.addresses.empty() ? std::string("-") : card.addresses.front().text();
    std::printf("%-16s %-20s %-8s %-24s %s\n", card.id.c_str(), card.serial.c_str(), state_of(card),
                address.c_str(), card.nqn.c_str());
  }
}

// The line for the control socket; a fault is judged here first.
std::string control_line(const std::string& command, const std::vector<std::string>& words) {
  if (command != "fault") {
    if (!words.empty()) throw std::invalid_argument(command + " takes no '" + words.front() + "'");
    return command;
  }
  std::string rest;
  for (const auto& word : words)
    rest.append(rest.empty() ? "" : " ").append(word);
  if (rest != "list" && rest != "clear") static_cast<void>(parse_fault(rest));
  return "fault " + rest;
}

void control_card(const std::string& state_dir, const std::string& id, const std::string& command) {
  const auto socket = connect_control(state_dir, id);
  const auto answer = ask_control(socket.get(), command);
  if (command != "stop") {
    if (const auto told = Json::parse(answer); told.contains("error")) {
      throw std::runtime_error(told["error"].get<std::string>());
    }
    std::cout << answer << "\n";
    return;
  }
  const akv::Deadline deadline(akv::monotonic_now(), kStopTime);
  while (card_runs(state_dir, id)) {
    if (deadline.passed(akv::monotonic_now())) throw std::runtime_error("card " + id + " does not stop");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::cout << Json{{"id", id}, {"state", "stopped"}}.dump() << "\n";
}

int run(const std::function<void()>& command) {
  try {
    command();
    return 0;
  } catch (const std::invalid_argument& error) {
    std::cerr << "akv-softcard: " << error.what() << "\n";
    return kUsageError;
  } catch (const std::exception& error) {
    std::cerr << "akv-softcard: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Software card: an NVMe/TCP target with one key-value namespace, and the card CLI of its host"};
  app.set_version_flag("--version", "akv-softcard " AKV_VERSION);
  app.require_subcommand(1);
  ServeArguments serve;
  add_serve(app, serve);

  std::string state_dir{kDefaultStateDir};
  bool json = false;
  auto& list = *app.add_subcommand("list", "List the cards of this host, running or stopped");
  list.add_flag("--json", json, "As JSON");
  add_state_dir(list, state_dir);

  std::string id;
  std::string command;
  std::vector<std::string> words;
  auto& ctl = *app.add_subcommand("ctl", "Ask a running card for its figures, stop it, or make it fail");
  add_state_dir(ctl, state_dir);
  ctl.add_option("--id", id, "The card")->required();
  ctl.add_option("command", command, "stats, stop or fault")
      ->required()
      ->check(CLI::IsMember({"stats", "stop", "fault"}));
  ctl.add_option("words", words, "fault list | fault clear | fault OPERATION KIND [NAME=VALUE ...]");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  if (list.parsed()) return run([&] { print_cards(state_dir, json); });
  if (ctl.parsed()) return run([&] { control_card(state_dir, id, control_line(command, words)); });
  return run([&] { serve_card(to_options(serve)); });
}
