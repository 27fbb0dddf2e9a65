// One client request for keys on a card: the unit that is routed, queued and answered.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "arena/region.hpp"
#include "arena/session_memory.hpp"
#include "base/clock.hpp"
#include "gateway/block_name.hpp"
#include "gateway/payload.hpp"
#include "gateway/wire.hpp"
#include "kv/envelope.hpp"
#include "kv/keys.hpp"
#include "kv/segments.hpp"

namespace akv::gateway {

class Session;

enum class BatchOp : std::uint8_t { put, get, exists, exists_prefix, remove };

// What the keys of one session are derived with, and what is known of the values under them.
struct Keyspace {
  kv::KeyDeriver keys;
  SpaceId space;
  std::uint32_t namespace_id;
  std::uint32_t max_value;                                    // bytes of the longest block a client may store
  std::shared_ptr<const std::atomic<std::uint32_t>> longest;  // bytes of the longest that clients here named
};

// A value in segments on its way. Written last to first and read first to last: where segment 0 is, all were.
// Removed last to first too, so that a DELETE that failed halfway can be repeated.
struct SegmentedValue {
  kv::Split split;
  std::uint16_t next{1};            // the next further segment to ask the card for
  std::uint16_t done{0};            // further segments that are stored, there or gone, or have arrived
  kv::Envelope first{};             // GET: of segment 0
  std::vector<std::uint32_t> crcs;  // by segment: of the value up to the segment's end
};

struct Entry {
  kv::EngineKey key{};
  std::byte* memory{nullptr};             // the payload's place in shared or private memory
  std::uint32_t length{0};                // PUT: of the payload; GET: room for it
  std::uint32_t value_length{0};          // GET: of the stored payload
  std::uint32_t value_crc{0};             // GET: of the payload that was found
  arena::BlockId block{arena::kNoBlock};  // of the arena; pinned until the batch is drained
  arena::Region* region{nullptr};         // that `memory` is in; one of the batch's
  wire::EntryStatus status{wire::EntryStatus::miss};
  std::uint16_t unreleased{0};  // commands that may still touch `memory`
  bool resolved{false};         // has its status
  bool quarantined{false};      // resolved while commands may still touch the block
  bool leads{false};            // GET: others may wait for its answer
  std::unique_ptr<SegmentedValue> segments;

  // The client can see `memory`, and uses it again after the reply.
  [[nodiscard]] bool is_shared() const noexcept { return block != arena::kNoBlock || region != nullptr; }
  // What was read from `memory` may not be what the client wrote there.
  [[nodiscard]] bool is_lost() const noexcept { return region != nullptr && region->broken(); }
  [[nodiscard]] std::span<const std::byte> place() const noexcept { return {memory, length}; }
};

// Made by a session, executed by the worker that has a queue to the card, answered by the session's worker.
// From handing over to BatchSink::finished() only the executing worker touches it; `abandoned` alone crosses.
struct Batch : std::enable_shared_from_this<Batch> {
  BatchOp op{BatchOp::get};
  std::uint64_t request_id{0};
  std::uint64_t dialog_id{0};
  std::uint64_t session_id{0};
  std::vector<Entry> entries;
  std::shared_ptr<const Keyspace> keyspace;
  std::shared_ptr<arena::SessionMemory> memory;         // null for inline payloads
  std::shared_ptr<Payload> payload;                     // null for shared memory
  std::vector<std::shared_ptr<arena::Region>> regions;  // that entries name; pinned until it is drained
  TimePoint deadline{};

  // The session's worker alone.
  Session* session{nullptr};  // null once the session is gone
  std::size_t home{0};        // index of the session's worker

  std::atomic<bool> abandoned{false};  // nobody waits for the reply

  // The executing worker alone.
  std::uint32_t next{0};             // first entry that was not begun yet
  std::uint32_t unresolved{0};       // entries without a status
  std::uint32_t unanswered{0};       // commands with buffers that the card has not answered
  std::uint32_t unreleased{0};       // commands that hold buffers; beyond the unanswered ones: the late
  std::vector<std::uint32_t> more;   // entries with further segments to ask the card for
  std::vector<std::uint32_t> again;  // entries that waited for another's answer in vain
  std::uint32_t awaited{0};          // entries with a status that others wait for and were not given yet
  bool waiting{false};               // stands in its lane's line
  bool settled{false};               // every entry has its status, every command an answer, nobody waits
  bool finished{false};              // the sink was told

  [[nodiscard]] bool is_inline() const noexcept { return payload != nullptr; }
  [[nodiscard]] std::size_t inline_bytes() const noexcept {
    return is_inline() ? payload->bytes().size() : 0;
  }
};

}  // namespace akv::gateway
