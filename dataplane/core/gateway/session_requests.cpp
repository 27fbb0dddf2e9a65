// What a session does with each request.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/bytes.hpp"
#include "base/events.hpp"
#include "gateway/session.hpp"

namespace akv::gateway {

void Session::take(const Frame& frame) {
  if (state_ == State::hello) {
    const bool hello = frame.header.opcode == static_cast<std::uint16_t>(wire::Opcode::hello);
    if (hello) return take_hello(frame);
    return fail_stream("the first request must be HELLO", frame.header.request_id,
                       wire::FrameStatus::bad_request);
  }
  if (shutting_down_) return refuse(frame.header, wire::FrameStatus::shutting_down, "the gateway ends");
  if (frame.dropped) {
    context_.counters.add(Counter::busy);
    return refuse(frame.header, wire::FrameStatus::busy, "no memory for a frame of this size now");
  }
  try {
    dispatch(frame);
  } catch (const wire::BadBody& bad) {
    context_.counters.add(Counter::bad_requests);
    error(frame.header, wire::FrameStatus::bad_request, bad.text);
  }
}

void Session::dispatch(const Frame& frame) {
  switch (static_cast<wire::Opcode>(frame.header.opcode)) {
    case wire::Opcode::hello:
      throw wire::BadBody{"HELLO came before"};
    case wire::Opcode::alloc:
      return take_alloc(frame);
    case wire::Opcode::free:
      return take_free(frame);
    case wire::Opcode::put:
      return take_put(frame);
    case wire::Opcode::get:
      return take_get(frame);
    case wire::Opcode::exists:
      return take_keyed(frame,
                        frame.header.status == wire::kPrefixOnly ? BatchOp::exists_prefix : BatchOp::exists);
    case wire::Opcode::remove:
      return take_keyed(frame, BatchOp::remove);
    case wire::Opcode::stats:
      return take_stats(frame);
    case wire::Opcode::register_region:
      if (regions_granted_) return take_register(frame);
      break;
    case wire::Opcode::unregister_region:
      if (regions_granted_) return take_unregister(frame);
      break;
    case wire::Opcode::borrow:
      if (loans_) return take_borrow(frame);
      break;
    case wire::Opcode::give_back:
      if (loans_) return take_give_back(frame);
      break;
    case wire::Opcode::released:
      break;
  }
  context_.counters.add(Counter::bad_requests);
  error(frame.header, wire::FrameStatus::unsupported,
        "opcode " + std::to_string(frame.header.opcode) + " is not known in version 1");
}

void Session::take_hello(const Frame& frame) {
  wire::Hello hello;
  try {
    hello = wire::decode_hello(frame.body);
  } catch (const wire::BadBody& bad) {
    return fail_stream(bad.text, frame.header.request_id, wire::FrameStatus::bad_request);
  }
  const HelloOutcome outcome = handshake_.receive(hello);
  switch (outcome.status) {
    case wire::FrameStatus::ok:
      return welcome(frame, hello, outcome);
    case wire::FrameStatus::auth_required:
      encode_refusal(frame.header, static_cast<std::uint16_t>(frame.header.opcode | wire::kReply),
                     outcome.status, outcome.server_nonce, output_);
      return flush_.request();
    case wire::FrameStatus::auth_failed:
      context_.counters.add(Counter::auth_failures);
      refuse(frame.header, outcome.status, outcome.text);
      return begin_closing();
    default:
      return fail_stream(outcome.text, frame.header.request_id, outcome.status);
  }
}

void Session::welcome(const Frame& frame, const wire::Hello& hello, const HelloOutcome& outcome) {
  name_space_ = hello.name_space;
  secret_ = outcome.secret;
  longest_ = context_.shared.lengths.of(name_space_);
  grant_memory(hello);
  regions_granted_ = local_ && (hello.features & wire::kFeatureRegions) != 0 && limits().max_regions != 0;
  if (may_borrow(hello)) loans_.emplace(context_.cache, limits().max_borrowed);
  attach_memory();
  const wire::Welcome welcome = make_welcome(outcome);
  wire::encode_welcome(welcome,
                       begin_reply(frame.header, static_cast<std::uint32_t>(welcome.bytes()), output_));
  reader_.set_max_body(limits().max_frame);
  state_ = State::open;
  flush_.request();
}

wire::Welcome Session::make_welcome(const HelloOutcome& outcome) const {
  const std::uint32_t memory = memory_ != nullptr ? wire::kFeatureSharedMemory : 0;
  const std::uint32_t regions = regions_granted_ ? wire::kFeatureRegions : 0;
  const std::uint32_t borrowing = loans_ ? wire::kFeatureBorrowing : 0;
  return {.features = memory | regions | borrowing,
          .arena_bytes = memory_ != nullptr ? memory_->bytes().size() : 0,
          .block_align = arena::kPageBytes,
          .max_batch = wire::kMaxBatch,
          .credits = limits().credits,
          .max_frame = limits().max_frame,
          .max_value = limits().max_value,
          .max_entries = limits().max_session_entries,
          .session_id = id_,
          .server_mac = outcome.server_mac,
          .max_regions = limits().max_regions,
          .region_bytes = limits().region_bytes,
          .cache_bytes = context_.cache.size(),
          .max_borrowed = limits().max_borrowed};
}

// As much of what the client wants as is left; a client that gets none works inline.
void Session::grant_memory(const wire::Hello& hello) {
  if (!local_ || (hello.features & wire::kFeatureSharedMemory) == 0) return;
  const std::uint64_t most = std::min(hello.arena_bytes, context_.shared.arena->limit());
  const std::uint64_t wanted = (most + arena::kPageBytes - 1) / arena::kPageBytes * arena::kPageBytes;
  auto reservation = context_.shared.arena->take_up_to(wanted, arena::kPageBytes);
  if (!reservation) return;
  context_.host.memory_taken();
  try {
    memory_ = std::make_shared<arena::SessionMemory>(std::move(reservation), context_.shared.leased);
  } catch (const std::system_error& failure) {
    context_.counters.add(Counter::no_memory);
    log_event(Level::warning, "shared_memory_refused", {{"reason", std::string_view(failure.what())}});
  }
}

void Session::take_alloc(const Frame& frame) {
  const auto lengths = decode_lengths(frame, limits());
  name_length(*longest_, std::ranges::max(lengths));
  const auto offsets = memory_ != nullptr ? memory_->leases.lease(lengths) : std::vector<std::uint64_t>{};
  if (offsets.empty()) {
    context_.counters.add(Counter::no_memory);
    return refuse(frame.header, wire::FrameStatus::no_memory,
                  "the session's memory has no room for these blocks");
  }
  std::byte* at = begin_reply(frame.header, static_cast<std::uint32_t>(8 * offsets.size()), output_).data();
  for (const std::uint64_t offset : offsets) {
    store_le(at, offset);
    at += sizeof offset;
  }
  flush_.request();
}

void Session::take_free(const Frame& frame) {
  const auto offsets = decode_offsets(frame);
  if (memory_ == nullptr || !memory_->leases.free(offsets)) {
    context_.counters.add(Counter::no_such_block);
    return refuse(frame.header, wire::FrameStatus::no_such_block, "an offset is not that of a leased block");
  }
  static_cast<void>(begin_reply(frame.header, 0, output_));
  flush_.request();
}

void Session::take_stats(const Frame& frame) {
  if (!frame.body.empty()) throw wire::BadBody{"STATS has no body"};
  const std::string text = collect_json(context_.shared);
  const auto body = begin_reply(frame.header, static_cast<std::uint32_t>(text.size()), output_);
  std::ranges::copy(as_byte_span(text), body.begin());
  flush_.request();
}

void Session::take_put(const Frame& frame) {
  const auto request = decode_transfers(frame, limits(), regions_granted_);
  if (!admit(frame)) return;
  name_length(*longest_, request.longest);
  auto batch = make_batch(frame, BatchOp::put);
  if (!request.is_inline) {
    place_shared(*batch, request);
  } else if (!place_inline_put(*batch, request, frame)) {
    context_.counters.add(Counter::busy);
    return refuse(frame.header, wire::FrameStatus::busy, "no memory for inline blocks now");
  }
  context_.counters.add(Counter::puts, batch->entries.size());
  start(std::move(batch), request.wanted);
}

void Session::take_get(const Frame& frame) {
  const auto request = decode_transfers(frame, limits(), regions_granted_);
  if (!admit(frame)) return;
  name_length(*longest_, request.longest);
  auto batch = make_batch(frame, BatchOp::get);
  if (!request.is_inline) {
    place_shared(*batch, request);
  } else if (!place_inline_get(*batch, request)) {
    context_.counters.add(Counter::busy);
    return refuse(frame.header, wire::FrameStatus::busy, "no memory for inline blocks now");
  }
  context_.counters.add(Counter::gets, batch->entries.size());
  start(std::move(batch), request.wanted);
}

void Session::take_keyed(const Frame& frame, BatchOp op) {
  const auto keys = decode_keys(frame);
  if (!admit(frame)) return;
  auto batch = make_batch(frame, op);
  for (std::size_t i = 0; i < keys.size(); ++i)
    batch->entries[i].key = keys[i];
  context_.counters.add(op == BatchOp::remove ? Counter::deletes : Counter::exists_keys, keys.size());
  start(std::move(batch), 0);
}

// Whether the session may have one more request outstanding; answers it otherwise.
bool Session::admit(const Frame& frame) {
  const auto same = [&frame](const Batch* batch) { return batch->request_id == frame.header.request_id; };
  if (std::ranges::any_of(outstanding_, same)) {
    throw wire::BadBody{"request id " + std::to_string(frame.header.request_id) + " is outstanding already"};
  }
  const bool room = outstanding_.size() < limits().credits &&
                    outstanding_entries_ + frame.header.count <= limits().max_session_entries;
  if (!room) {
    context_.counters.add(Counter::busy);
    refuse(frame.header, wire::FrameStatus::busy, "too many requests are outstanding");
  }
  return room;
}

// For the num_dbs of the plan that is served now.
const std::shared_ptr<const Keyspace>& Session::keyspace() {
  const std::uint32_t num_dbs = context_.host.num_dbs();
  if (keyspace_ == nullptr || keyspace_dbs_ != num_dbs) {
    kv::KeyDeriver keys(name_space_, secret_, num_dbs);
    const SpaceId space = keys.value_key({});
    keyspace_ = std::make_shared<const Keyspace>(Keyspace{.keys = std::move(keys),
                                                          .space = space,
                                                          .namespace_id = kv::namespace_id(name_space_),
                                                          .max_value = limits().max_value,
                                                          .longest = longest_});
    keyspace_dbs_ = num_dbs;
  }
  return keyspace_;
}

std::shared_ptr<Batch> Session::make_batch(const Frame& frame, BatchOp op) {
  auto batch = std::make_shared<Batch>();
  batch->op = op;
  batch->request_id = frame.header.request_id;
  batch->dialog_id = frame.header.dialog_id;
  batch->session_id = id_;
  batch->entries.resize(frame.header.count);
  batch->unresolved = frame.header.count;
  batch->keyspace = keyspace();
  batch->session = this;
  batch->home = context_.worker;
  return batch;
}

void Session::settle_unplaced(Batch& batch, Entry& entry, wire::EntryStatus status) {
  entry.status = status;
  entry.resolved = true;
  --batch.unresolved;
  const bool get = batch.op == BatchOp::get;
  if (status == wire::EntryStatus::no_such_block) {
    context_.counters.add(Counter::no_such_block);
  } else if (status == wire::EntryStatus::too_large) {
    context_.counters.add(Counter::puts_too_large);
  } else {
    context_.counters.add(get ? Counter::misses : Counter::lost_puts);
    context_.counters.add(get ? Counter::miss_quarantined : Counter::lost_quarantined);
  }
}

// Points the entries at memory that is shared with the client, and pins it.
void Session::place_shared(Batch& batch, const TransferRequest& request) {
  batch.memory = memory_;
  for (std::size_t i = 0; i < request.entries.size(); ++i) {
    const wire::TransferEntry& wanted = request.entries[i];
    Entry& entry = batch.entries[i];
    std::memcpy(entry.key.data(), wanted.key, entry.key.size());
    entry.length = wanted.length;
    if (wanted.region == wire::kRegionArena) {
      place_in_arena(batch, entry, wanted.offset);
    } else {
      place_in_region(batch, entry, wanted);
    }
  }
}

void Session::place_in_arena(Batch& batch, Entry& entry, std::uint64_t offset) {
  const auto block = memory_ != nullptr ? memory_->leases.find(offset, entry.length) : std::nullopt;
  if (!block) {
    settle_unplaced(batch, entry, wire::EntryStatus::no_such_block);
  } else if (memory_->leases.quarantined(*block)) {
    const bool get = batch.op == BatchOp::get;
    settle_unplaced(batch, entry, get ? wire::EntryStatus::late : wire::EntryStatus::not_stored);
  } else {
    entry.memory = memory_->bytes().data() + offset;
    entry.block = *block;
    memory_->leases.pin(*block);
  }
}

// A GET's blocks arrive in private memory, from where the reply is sent. False: there is none now.
bool Session::place_inline_get(Batch& batch, const TransferRequest& request) {
  batch.payload = Payload::make(*context_.shared.inline_memory, request.wanted);
  if (batch.payload == nullptr) return false;
  std::byte* at = batch.payload->bytes().data();
  for (std::size_t i = 0; i < request.entries.size(); ++i) {
    Entry& entry = batch.entries[i];
    std::memcpy(entry.key.data(), request.entries[i].key, entry.key.size());
    entry.length = request.entries[i].length;
    entry.memory = at;
    at += entry.length;
  }
  return true;
}

// A PUT's blocks stay in the frame where that has memory of its own, else they are copied out of it.
bool Session::place_inline_put(Batch& batch, const TransferRequest& request, const Frame& frame) {
  const std::size_t table = wire::kTransferEntryBytes * request.entries.size();
  batch.payload = frame.owner;
  std::byte* at = nullptr;
  if (batch.payload != nullptr) {
    at = batch.payload->bytes().data() + table;
  } else {
    batch.payload = Payload::make(*context_.shared.inline_memory, request.wanted);
    if (batch.payload == nullptr) return false;
    at = batch.payload->bytes().data();
    std::ranges::copy(frame.body.subspan(table), at);
  }
  for (std::size_t i = 0; i < request.entries.size(); ++i) {
    Entry& entry = batch.entries[i];
    std::memcpy(entry.key.data(), request.entries[i].key, entry.key.size());
    entry.length = request.entries[i].length;
    entry.memory = at;
    at += entry.length;
    if (entry.length > limits().max_value) settle_unplaced(batch, entry, wire::EntryStatus::too_large);
  }
  return true;
}

// Hands the batch over. Its deadline leaves time for its bytes at the slowest rate worth waiting for.
void Session::start(std::shared_ptr<Batch> batch, std::uint64_t bytes) {
  // Regions bound no length: what an entry names beyond the longest block is not waited for.
  bytes = std::min(bytes, batch->entries.size() * std::uint64_t{limits().max_value});
  batch->deadline =
      context_.reactor.now() + limits().io_timeout + time_for(bytes, limits().slowest_bytes_a_second);
  outstanding_.push_back(batch.get());
  outstanding_entries_ += batch->entries.size();
  outstanding_inline_ += batch->inline_bytes();
  if (batch->unresolved == 0) {
    finished(batch);
  } else {
    context_.host.execute(std::move(batch));
  }
}

}  // namespace akv::gateway
