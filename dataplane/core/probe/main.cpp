// akv-initiator: measures the NVMe/TCP initiator alone against any target, block or key-value; one JSON line.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "probe/load.hpp"

namespace akv::probe {
namespace {

struct Arguments {
  std::string target;
  std::string nqn;
  std::string host_nqn{"nqn.2014-08.org.nvmexpress:uuid:616b762d-7072-6f62-6501-000000000000"};
  std::string op{"read"};
  std::uint32_t io_bytes{65536};
  std::uint32_t depth{1};
  double seconds{5};
  std::uint64_t span_bytes{64U << 20U};
  std::uint64_t inflight{4U << 20U};
  std::string waiting{"sleep"};
  bool digests{false};
  bool no_fill{false};
};

void add_options(CLI::App& app, Arguments& arguments) {
  app.set_version_flag("--version", "akv-initiator " AKV_VERSION);
  app.add_option("--target", arguments.target, "HOST:PORT; HOST is an address literal, IPv6 in brackets")
      ->required();
  app.add_option("--nqn", arguments.nqn, "The subsystem's NQN")->required();
  app.add_option("--host-nqn", arguments.host_nqn, "This host's NQN")->capture_default_str();
  app.add_option("--op", arguments.op, "read or write (KV: Retrieve or Store)")
      ->check(CLI::IsMember({"read", "write"}))
      ->capture_default_str();
  const auto size = CLI::AsSizeValue(false);
  app.add_option("--io-size", arguments.io_bytes, "Bytes of a command")
      ->transform(size)
      ->capture_default_str();
  app.add_option("--qd", arguments.depth, "Commands outstanding")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seconds", arguments.seconds, "How long")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--span", arguments.span_bytes,
                 "Bytes of the target that are used in turn; what they held is lost")
      ->transform(size)
      ->capture_default_str();
  app.add_option("--max-inflight", arguments.inflight,
                 "Payload on the wire at once; 0: no bound but the depth")
      ->transform(size)
      ->capture_default_str();
  app.add_option("--waiting", arguments.waiting,
                 "While nothing is there to do: sleep, adaptive (poll first where waits are short), or poll")
      ->check(CLI::IsMember({"sleep", "adaptive", "poll"}))
      ->capture_default_str();
  app.add_flag("--digests", arguments.digests, "Header and data digests");
  app.add_flag("--no-fill", arguments.no_fill, "Reads: don't write the span before");
}

Waiting waiting_of(const std::string& text) {
  if (text == "poll") return Waiting::poll;
  return text == "adaptive" ? Waiting::adaptive : Waiting::sleep;
}

fabric::TcpAddress address_of(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) throw ProbeError("--target is HOST:PORT, not \"" + text + "\"");
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, text.substr(colon + 1)};
}

LoadConfig load_of(const Arguments& arguments, const Facts& facts) {
  if (arguments.io_bytes == 0 || arguments.io_bytes > facts.max_io_bytes) {
    throw ProbeError("--io-size " + std::to_string(arguments.io_bytes) + ": this target takes 1 to " +
                     std::to_string(facts.max_io_bytes) + " bytes in a command");
  }
  std::uint64_t span = arguments.span_bytes;
  if (facts.kind == Kind::block) {
    if (arguments.io_bytes % facts.block_bytes != 0) {
      throw ProbeError("--io-size must be a multiple of the namespace's " +
                       std::to_string(facts.block_bytes) + "-byte blocks");
    }
    if (facts.capacity < arguments.io_bytes) throw ProbeError("the namespace is smaller than one command");
    span = std::min(span, facts.capacity);
  }
  return {.op = arguments.op == "read" ? Op::read : Op::write,
          .io_bytes = arguments.io_bytes,
          .depth = arguments.depth,
          .span_bytes = span,
          .max_inflight_bytes = arguments.inflight,
          .duration = std::chrono::milliseconds(static_cast<std::int64_t>(arguments.seconds * 1000))};
}

double percentile(const std::vector<std::uint32_t>& sorted, double part) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1))];
}

nlohmann::ordered_json report(const Arguments& arguments, const Facts& facts, const LoadResult& result) {
  const double seconds = std::chrono::duration<double>(result.elapsed).count();
  const double gigabytes = static_cast<double>(result.ios) * arguments.io_bytes / 1e9;
  const double cpu = std::chrono::duration<double>(result.cpu).count();
  return {{"target", arguments.target},
          {"model", facts.model},
          {"kind", facts.kind == Kind::block ? "block" : "kv"},
          {"op", arguments.op},
          {"io_bytes", arguments.io_bytes},
          {"qd", arguments.depth},
          {"waiting", arguments.waiting},
          {"seconds", seconds},
          {"ios", result.ios},
          {"errors", result.errors},
          {"gb_per_s", gigabytes / seconds},
          {"mib_per_s", gigabytes * 1e9 / seconds / 1048576},
          {"p50_us", percentile(result.latencies_us, 0.5)},
          {"p99_us", percentile(result.latencies_us, 0.99)},
          {"cpu_s_per_gb", gigabytes > 0 ? cpu / gigabytes : 0},
          {"cpu_cores", cpu / seconds}};
}

int run(const Arguments& arguments) {
  Reactor reactor;
  reactor.set_waiting(waiting_of(arguments.waiting));
  reactor.shorten_wakeups();  // as akv-dataplane does
  const auto digests = arguments.digests ? fabric::DigestPolicy::require : fabric::DigestPolicy::off;
  Target target(reactor, {.address = address_of(arguments.target),
                          .nqn = arguments.nqn,
                          .host_nqn = arguments.host_nqn,
                          .depth = arguments.depth,
                          .digests = digests});
  const LoadConfig load = load_of(arguments, target.facts());
  if (load.op == Op::read && !arguments.no_fill) fill(reactor, target, load);
  const LoadResult result = run_load(reactor, target, load);
  std::printf("%s\n", report(arguments, target.facts(), result).dump().c_str());
  return result.errors == 0 ? 0 : 3;
}

}  // namespace
}  // namespace akv::probe

int main(int argc, char** argv) {
  CLI::App app("Measures the NVMe/TCP initiator alone against any target; prints one JSON line.",
               "akv-initiator");
  akv::probe::Arguments arguments;
  akv::probe::add_options(app, arguments);
  try {
    app.parse(argc, argv);
    return akv::probe::run(arguments);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "akv-initiator: %s\n", error.what());
    return 2;
  }
}
