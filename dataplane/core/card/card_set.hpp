// The cards that the gateway uses, by serial number: the set changes at run time, one card without the
// others.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/reactor.hpp"
#include "card/io.hpp"
#include "fabric/queue_pair.hpp"

namespace akv::card {

// One way to reach a card. `traddr` is an address literal without brackets, `trsvcid` a decimal port.
struct CardPath {
  std::string transport{"tcp"};
  std::string traddr;
  std::string trsvcid;

  bool operator==(const CardPath&) const = default;
};

// A card as the plan names it. The serial number is its only name.
struct CardSpec {
  std::string serial;
  std::string nqn;
  std::string uuid;  // of the namespace; empty: any KV namespace of the subsystem
  std::vector<CardPath> paths;

  bool operator==(const CardSpec&) const = default;
};

enum class CardState : std::uint8_t {
  connecting,       // the first attempt, or one after a pause
  live,             // identified, at least one I/O queue is connected
  backoff,          // waits for the next attempt; last_error says why
  wrong_serial,     // another subsystem answers at the card's paths (tried again with backoff)
  no_kv_namespace,  // no KV namespace, or none with the wanted UUID (tried again with backoff)
  too_few_queues,   // the controller grants no I/O queue (tried again with backoff)
  stopped,          // removed from the set, or the set was stopped
};

// "connecting", "live", "backoff", "wrong-serial", "no-kv-namespace", "too-few-queues", "stopped".
[[nodiscard]] std::string_view to_string(CardState state) noexcept;

// What is wrong with a card (docs/gateway.md says what to do about each).
enum class Trouble : std::uint8_t {
  none,
  // A card that is in service and does not do well; the last two can cost it the connection, too.
  slow,            // an answer after more than half of the deadline, or none before it
  command_errors,  // an NVMe status other than success, "no such key" and what is asked for
  corrupt_values,  // values that are not what was stored
  wrong_length,    // other lengths than were told or asked for
  wrong_digest,    // of data; that of a header ends the connection
  // One that left service, or can't be taken into it.
  no_path,  // none is listed, or none that this build can use
  path_removed,
  unreachable,  // no TCP connection
  hung,         // connected, and silent
  reset,
  closed,
  refused,     // it answers, and says no
  terminated,  // it ended the connection by a termination PDU
  wrong_id,
  protocol_error,    // any other breach of NVMe/TCP
  controller_fatal,  // its own status says so, or it is not ready any more
  namespaces_changed,
  wrong_serial,
  no_kv_namespace,
  too_few_queues,
  local_error,  // this machine could not go on
};

// "slow", "command-errors" and so on; "" for none.
[[nodiscard]] std::string_view to_string(Trouble trouble) noexcept;

// What is known of one card at one moment. Counters only grow while the card is in the set.
struct CardSnapshot {
  std::string serial;
  CardState state{CardState::connecting};
  // In service: what went wrong in the last ten seconds. Else why it left service, or can't be taken into
  // it.
  Trouble trouble{Trouble::none};
  std::string last_error;     // why it left service last; stays for display when it is live again
  std::string path;           // "tcp://127.0.0.11:4420", of the connection or of the last attempt
  std::uint64_t attempts{0};  // to connect, of any outcome
  std::uint64_t reconnects{0};
  std::uint64_t timeouts{0};
  std::uint64_t retrieves{0};  // answered: found, not found or failed
  std::uint64_t hits{0};       // retrieves with status ok
  std::uint64_t stores{0};     // with status ok
  std::uint64_t exists{0};
  std::uint64_t removes{0};
  std::uint64_t errors{0};  // answers with IoStatus::error
  std::uint64_t bytes_in{0};
  std::uint64_t bytes_out{0};
  std::uint64_t inflight{0};  // commands that hold buffers, timed-out ones included
  std::uint32_t queues{0};    // I/O queues connected
  std::uint32_t max_value_bytes{0};
};

// Used by one control thread (apply, stop), by any thread (status), and by each worker on its own thread
// (queue, serving_worker). The reactors must run until stop() has returned true or the set is destroyed.
class CardSet {
 public:
  virtual ~CardSet() = default;

  // Makes `cards` the set. A card of an unchanged spec is not touched; one whose paths changed keeps its
  // connection when that path is still listed; one whose NQN or UUID changed is taken out and put in anew.
  // Returns before anything is connected; a card whose paths can't be used (none, a bad address, another
  // transport) stays in the set and says so in last_error. Throws std::invalid_argument, with nothing
  // changed, on an empty, overlong or doubled serial or NQN.
  virtual void apply(const std::vector<CardSpec>& cards) = 0;

  // The worker's own queue of this card, or null when the card is not in the set. Good until the worker's
  // reactor runs its next event: ask again each time, it costs one lookup.
  [[nodiscard]] virtual IoQueue* queue(std::size_t worker, std::string_view serial) noexcept = 0;

  // The worker that serves this card for `worker`: itself when its queue is connected, else one whose queue
  // is (a card may grant fewer queues than there are workers); nothing when the card is not in the set or not
  // live.
  [[nodiscard]] virtual std::optional<std::size_t> serving_worker(std::size_t worker,
                                                                  std::string_view serial) noexcept = 0;

  // One entry a card, ordered by serial.
  [[nodiscard]] virtual std::vector<CardSnapshot> status() const = 0;

  // Takes every card out; true when all requests are completed and released and all sockets are closed.
  [[nodiscard]] virtual bool stop(std::chrono::milliseconds deadline) = 0;
};

using fabric::DigestPolicy;

struct NvmeCardConfig {
  std::string host_nqn;                             // at most 223 bytes
  std::string host_uuid;                            // host identifier, canonical UUID text
  std::chrono::milliseconds connect_timeout{3000};  // TCP connect to live, all steps together
  std::chrono::milliseconds io_timeout{5000};
  std::uint32_t io_timeout_strikes{3};
  std::chrono::milliseconds keep_alive{5000};  // KATO; sent at half of it, lost when unanswered for all of it
  std::chrono::milliseconds backoff_first{100};
  std::chrono::milliseconds backoff_cap{5000};
  std::uint32_t queue_depth{512};               // commands a worker and card, 1..1023
  std::uint64_t max_inflight_bytes{4U << 20U};  // payload a worker and card on the wire; more waits in line
  DigestPolicy header_digest{DigestPolicy::off};
  DigestPolicy data_digest{DigestPolicy::off};
};

// Cards over NVMe/TCP. `workers[i]` is the reactor of worker i; queue(i, ...) belongs to its thread.
// Throws std::invalid_argument on a configuration that can't work.
[[nodiscard]] std::unique_ptr<CardSet> make_nvme_card_set(std::vector<Reactor*> workers,
                                                          NvmeCardConfig config);

struct MemoryCardConfig {
  std::uint64_t capacity_bytes{256U << 20U};  // a card; the oldest values leave when it is full
  std::uint32_t max_value_bytes{4U << 20U};
  std::uint32_t queue_depth{128};
};

// Backend kv-memory: every card of the set is a map in this process and live at once. Values are gone with
// their card. For tests and for gateways without cards.
[[nodiscard]] std::unique_ptr<CardSet> make_memory_card_set(std::vector<Reactor*> workers,
                                                            MemoryCardConfig config = {});

}  // namespace akv::card
