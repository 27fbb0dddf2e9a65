// dataplane._native: the engine as Python sees it. Calls that may wait release the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "arena/s3_fifo.hpp"
#include "base/events.hpp"
#include "gateway/engine.hpp"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace akv::python {
namespace {

using gateway::CardView;
using gateway::Engine;
using gateway::EngineConfig;
using gateway::Plan;

constexpr std::size_t kEventCapacity = 4096;

// (slot, routable, serial, nqn, uuid, [(transport, traddr, trsvcid)])
using Path = std::tuple<std::string, std::string, std::string>;
using Slot = std::tuple<std::uint8_t, bool, std::string, std::string, std::string, std::vector<Path>>;

gateway::Secrets to_secrets(const nb::dict& names) {
  gateway::Secrets secrets;
  for (const auto& [name, value] : names) {
    const auto bytes = nb::cast<nb::bytes>(value);
    kv::Secret secret;
    if (bytes.size() != secret.size()) throw std::invalid_argument("a namespace's secret has 32 bytes");
    std::copy_n(static_cast<const std::byte*>(bytes.data()), secret.size(), secret.begin());
    secrets.emplace(nb::cast<std::string>(name), secret);
  }
  return secrets;
}

card::DigestPolicy to_digest_policy(const std::string& name) {
  if (name == "none") return card::DigestPolicy::off;
  if (name == "prefer") return card::DigestPolicy::prefer;
  if (name == "require") return card::DigestPolicy::require;
  throw std::invalid_argument("digests " + name + " is not none, prefer or require");
}

gateway::SlotPlan to_slot(Slot&& from) {
  auto& [slot, routable, serial, nqn, uuid, paths] = from;
  gateway::SlotPlan to{
      .slot = slot,
      .routable = routable,
      .card = {.serial = std::move(serial), .nqn = std::move(nqn), .uuid = std::move(uuid), .paths = {}}};
  for (auto& [transport, traddr, trsvcid] : paths) {
    to.card.paths.push_back({std::move(transport), std::move(traddr), std::move(trsvcid)});
  }
  return to;
}

void make_engine(Engine* self, const std::string& backend, const std::string& bind_address,
                 std::uint16_t port, const std::string& client_socket, std::uint64_t shared_memory_size,
                 std::uint64_t read_cache_size, bool lend_cached_blocks, std::uint32_t client_regions,
                 std::uint64_t client_regions_size, const std::vector<int>& cores, std::size_t workers,
                 std::uint32_t io_timeout_ms, std::uint32_t io_timeout_strikes, const std::string& digests,
                 const nb::dict& secrets, const std::string& host_nqn, const std::string& host_uuid,
                 bool busy_poll, bool short_wakeups) {
  EngineConfig config;
  config.backend = backend;
  config.bind_address = bind_address;
  config.port = port;
  config.client_socket = client_socket;
  config.shared_memory_size = shared_memory_size;
  config.read_cache_size = read_cache_size;
  config.lend_cached_blocks = lend_cached_blocks;
  config.limits.max_regions = client_regions;
  config.limits.region_bytes = client_regions_size;
  config.workers = workers;
  config.cores = cores;
  config.io_timeout = std::chrono::milliseconds(io_timeout_ms);
  config.io_timeout_strikes = io_timeout_strikes;
  config.digests = to_digest_policy(digests);
  config.secrets = to_secrets(secrets);
  config.host_nqn = host_nqn;
  config.host_uuid = host_uuid;
  config.busy_poll = busy_poll;
  config.short_wakeups = short_wakeups;
  new (self) Engine(std::move(config));
}

bool apply_plan(Engine& engine, std::string cluster_uuid, std::uint64_t sequence, std::uint32_t num_dbs,
                std::string fingerprint, std::vector<Slot> slots) {
  Plan plan{.cluster_uuid = std::move(cluster_uuid),
            .sequence = sequence,
            .num_dbs = num_dbs,
            .fingerprint = std::move(fingerprint),
            .slots = {}};
  for (Slot& slot : slots)
    plan.slots.push_back(to_slot(std::move(slot)));
  const nb::gil_scoped_release unlocked;
  return engine.apply_plan(std::move(plan));
}

std::vector<CardView> status(const Engine& engine) {
  const nb::gil_scoped_release unlocked;
  return engine.status();
}

nb::dict counters(const Engine& engine) {
  nb::dict all;
  for (const auto& [name, value] : engine.counters())
    all[name.c_str()] = value;
  return all;
}

bool stop(Engine& engine, std::uint32_t patience_ms) {
  const nb::gil_scoped_release unlocked;
  return engine.stop(std::chrono::milliseconds(patience_ms));
}

nb::object to_object(const FieldValue& value) {
  return std::visit([](const auto& content) -> nb::object { return nb::cast(content); }, value);
}

nb::list take_events(EventQueue& queue) {
  nb::list events;
  for (const Event& event : queue.take()) {
    nb::dict fields;
    for (const Field& field : event.fields)
      fields[field.key.c_str()] = to_object(field.value);
    events.append(nb::make_tuple(std::string(to_string(event.level)), event.name, fields));
  }
  return events;
}

std::shared_ptr<EventQueue>& installed_queue() {
  static std::shared_ptr<EventQueue> queue;
  return queue;
}

// From now on log events of the native code wait for take_events().
int capture_events() {
  auto& queue = installed_queue();
  if (queue == nullptr) {
    queue = std::make_shared<EventQueue>(kEventCapacity);
    set_event_sink(queue);
  }
  return queue->fd();
}

// How many of the accesses a read cache of `capacity` equal blocks would answer.
std::uint64_t read_cache_hits(const std::vector<std::uint64_t>& accesses, std::uint64_t capacity) {
  if (capacity == 0) return 0;
  arena::S3Fifo policy(capacity);
  std::unordered_map<std::uint64_t, arena::S3Fifo::Slot> in;
  std::vector<std::uint64_t> owner;
  std::uint64_t hits = 0;
  for (const std::uint64_t block : accesses) {
    const auto found = in.find(block);
    if (found != in.end()) {
      policy.hit(found->second);
      ++hits;
      continue;
    }
    auto slot = static_cast<arena::S3Fifo::Slot>(owner.size());
    if (policy.used() == capacity) {
      slot = *policy.evict();
      in.erase(owner[slot]);
    } else {
      owner.emplace_back();
    }
    policy.insert(slot, block, 1);
    owner[slot] = block;
    in.emplace(block, slot);
  }
  return hits;
}

template <typename Member>
auto card_field(Member card::CardSnapshot::* member) {
  return [member](const CardView& view) { return view.card.*member; };
}

void bind_card(nb::module_& module) {
  nb::class_<CardView>(module, "CardView")
      .def_prop_ro("serial", card_field(&card::CardSnapshot::serial))
      .def_prop_ro("slot", [](const CardView& view) { return view.slot; })
      .def_prop_ro("state", [](const CardView& view) { return std::string(to_string(view.card.state)); })
      .def_prop_ro("trouble", [](const CardView& view) { return std::string(to_string(view.card.trouble)); })
      .def_prop_ro("active", [](const CardView& view) { return view.active; })
      .def_prop_ro("last_error", card_field(&card::CardSnapshot::last_error))
      .def_prop_ro("path", card_field(&card::CardSnapshot::path))
      .def_prop_ro("reconnects", card_field(&card::CardSnapshot::reconnects))
      .def_prop_ro("timeouts", card_field(&card::CardSnapshot::timeouts))
      .def_prop_ro("gets", card_field(&card::CardSnapshot::retrieves))
      .def_prop_ro("hits", card_field(&card::CardSnapshot::hits))
      .def_prop_ro("puts", card_field(&card::CardSnapshot::stores))
      .def_prop_ro("inflight", card_field(&card::CardSnapshot::inflight));
}

void bind_engine(nb::module_& module) {
  nb::class_<Engine>(module, "Engine")
      .def("__init__", &make_engine, nb::kw_only(), "backend"_a, "bind_address"_a, "port"_a,
           "client_socket"_a, "shared_memory_size"_a, "read_cache_size"_a, "lend_cached_blocks"_a,
           "client_regions"_a, "client_regions_size"_a, "cores"_a, "workers"_a, "io_timeout_ms"_a,
           "io_timeout_strikes"_a, "digests"_a, "secrets"_a, "host_nqn"_a, "host_uuid"_a, "busy_poll"_a,
           "short_wakeups"_a)
      .def("start", &Engine::start, nb::call_guard<nb::gil_scoped_release>())
      .def("apply_plan", &apply_plan, nb::kw_only(), "cluster_uuid"_a, "sequence"_a, "num_dbs"_a,
           "fingerprint"_a, "slots"_a)
      .def("status", &status)
      .def("counters", &counters)
      .def("stop", &stop, "patience_ms"_a);
}

}  // namespace

NB_MODULE(_native, module) {
  [[maybe_unused]] const nb::exception<gateway::ListenError> listen_error(module, "ListenError",
                                                                          PyExc_OSError);
  bind_card(module);
  bind_engine(module);
  module.def("capture_events", &capture_events);
  module.def("read_cache_hits", &read_cache_hits, "accesses"_a, "capacity"_a);
  module.def("take_events", [] { return take_events(*installed_queue()); });
}

}  // namespace akv::python
