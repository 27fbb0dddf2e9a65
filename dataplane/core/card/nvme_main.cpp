// akv-nvme: asks an NVMe-oF subsystem who it is, as a gateway would see it. A JSON object on stdout.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "card/identify.hpp"
#include "card/uuid.hpp"
#include "nvme/connect.hpp"

namespace {

using Json = nlohmann::ordered_json;

constexpr int kRefused = 1;
constexpr int kUsageError = 2;
constexpr int kUnreachable = 3;

struct Arguments {
  std::string transport{"tcp"};
  std::string traddr;
  std::string trsvcid{"4420"};
  std::string nqn;
  std::string host_nqn;
  std::uint32_t timeout_ms{3000};
  bool json{false};
};

// The host id of this machine, so that a target's list of hosts knows us; random ones would look like many
// hosts.
akv::nvme::Uuid host_id() {
  std::ifstream file("/etc/machine-id");
  std::string id;
  file >> id;
  if (id.size() == 32) {
    for (const std::size_t at : {8U, 13U, 18U, 23U})
      id.insert(at, "-");
  }
  return akv::card::parse_uuid(id).value_or(akv::nvme::Uuid{0x61, 0x6B, 0x76});
}

akv::card::IdentifyTarget to_target(const Arguments& arguments) {
  if (arguments.nqn.empty() || arguments.nqn.size() > akv::nvme::kNqnMaxBytes) {
    throw std::invalid_argument("nqn must have 1 to 223 bytes");
  }
  const auto id = host_id();
  const std::string host = arguments.host_nqn.empty()
                               ? "nqn.2014-08.org.nvmexpress:uuid:" + akv::card::format_uuid(id)
                               : arguments.host_nqn;
  if (host.size() > akv::nvme::kNqnMaxBytes)
    throw std::invalid_argument("host-nqn must have at most 223 bytes");
  return {.address = akv::fabric::TcpAddress(arguments.traddr, arguments.trsvcid),
          .subsystem_nqn = arguments.nqn,
          .host_nqn = host,
          .host_id = id};
}

std::string hex(const std::array<std::uint8_t, 16>& bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", byte);
    text += pair;
  }
  return text;
}

Json to_json(const akv::card::SubsystemFacts& facts) {
  Json namespaces = Json::array();
  for (const auto& entry : facts.namespaces) {
    const auto& ids = entry.identifiers;
    namespaces.push_back({{"nsid", entry.nsid},
                          {"csi", ids.csi ? Json(*ids.csi) : Json()},
                          {"uuid", ids.uuid ? Json(akv::card::format_uuid(*ids.uuid)) : Json()},
                          {"nguid", ids.nguid ? Json(hex(*ids.nguid)) : Json()}});
  }
  return {{"serial", facts.serial},
          {"nqn", facts.nqn},
          {"model", facts.model},
          {"firmware", facts.firmware},
          {"multi_controller", facts.many_controllers},
          {"namespaces", namespaces}};
}

void print(const akv::card::SubsystemFacts& facts, bool json) {
  const Json answer = to_json(facts);
  if (json) {
    std::cout << answer.dump() << "\n";
    return;
  }
  for (const auto& [key, value] : answer.items()) {
    std::cout << key << ": " << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  }
}

int fail(int code, const std::exception& error) {
  std::cerr << "akv-nvme: " << error.what() << "\n";
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Asks an NVMe-oF subsystem who it is. Exit codes: 0 answered, 1 refused, 2 wrong usage, 3 no answer"};
  app.set_version_flag("--version", "akv-nvme " AKV_VERSION);
  app.require_subcommand(1);
  Arguments arguments;
  auto& identify = *app.add_subcommand("identify", "Serial number, NQN and namespaces of a subsystem");
  identify.add_option("--transport", arguments.transport, "How to reach it")
      ->check(CLI::IsMember({"tcp"}))
      ->capture_default_str();
  identify.add_option("--traddr", arguments.traddr, "IPv4 or IPv6 address literal")->required();
  identify.add_option("--trsvcid", arguments.trsvcid, "Port")->capture_default_str();
  identify.add_option("--nqn", arguments.nqn, "NVMe qualified name of the subsystem")->required();
  identify.add_option("--host-nqn", arguments.host_nqn, "Own name (default: from /etc/machine-id)");
  identify.add_option("--timeout-ms", arguments.timeout_ms, "Deadline of all steps together")
      ->check(CLI::Range(10, 60000))
      ->capture_default_str();
  identify.add_flag("--json", arguments.json, "As JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  try {
    const auto facts =
        akv::card::identify_subsystem(to_target(arguments), std::chrono::milliseconds(arguments.timeout_ms));
    print(facts, arguments.json);
    return 0;
  } catch (const std::invalid_argument& error) {
    return fail(kUsageError, error);
  } catch (const akv::card::Refused& error) {
    return fail(kRefused, error);
  } catch (const std::exception& error) {
    return fail(kUnreachable, error);
  }
}
