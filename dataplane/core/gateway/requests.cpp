#include "gateway/requests.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "base/bytes.hpp"

namespace akv::gateway {
namespace {

void check_count(const Frame& frame) {
  const std::uint32_t count = frame.header.count;
  if (count == 0 || count > wire::kMaxBatch) {
    throw wire::BadBody{"count is " + std::to_string(count) + ", it must be 1 to " +
                        std::to_string(wire::kMaxBatch)};
  }
}

void check_body(const Frame& frame, std::uint64_t wanted) {
  if (frame.body.size() != wanted) {
    throw wire::BadBody{"the body has " + std::to_string(frame.body.size()) + " bytes, but " +
                        std::to_string(frame.header.count) + " entries take " + std::to_string(wanted)};
  }
}

void check_status(const Frame& frame) {
  if (frame.header.status != 0) throw wire::BadBody{"the status of this request must be 0"};
}

template <std::unsigned_integral T>
std::vector<T> decode_numbers(const Frame& frame) {
  check_count(frame);
  check_status(frame);
  check_body(frame, std::uint64_t{frame.header.count} * sizeof(T));
  std::vector<T> numbers(frame.header.count);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = load_le<T>(frame.body.data() + i * sizeof(T));
  return numbers;
}

void check_entry(const wire::TransferEntry& entry, std::size_t index, bool is_inline, bool regions) {
  const std::string where = "entry " + std::to_string(index) + ": ";
  if (!regions && entry.region != wire::kRegionArena && entry.region != wire::kRegionInline) {
    throw wire::BadBody{where + "region " + std::to_string(entry.region) + ", but HELLO granted no regions"};
  }
  if ((entry.region == wire::kRegionInline) != is_inline)
    throw wire::BadBody{where + "inline and shared entries in one frame"};
  if (entry.flags != 0) throw wire::BadBody{where + "flags must be 0"};
  if (entry.length == 0) throw wire::BadBody{where + "length is 0"};
}

void check_inline(const Frame& frame, const TransferRequest& request, const Limits& limits) {
  const bool put = frame.header.opcode == static_cast<std::uint16_t>(wire::Opcode::put);
  const std::uint64_t table = std::uint64_t{frame.header.count} * wire::kTransferEntryBytes;
  check_body(frame, put ? table + request.wanted : table);
  const std::uint64_t reply = std::uint64_t{frame.header.count} * wire::kGetReplyEntryBytes + request.wanted;
  if (!put && reply > limits.max_frame) {
    throw wire::BadBody{"the wanted blocks make a reply of " + std::to_string(reply) +
                        " bytes, above max_frame " + std::to_string(limits.max_frame)};
  }
}

void encode_statuses(const Batch& batch, std::span<std::byte> body) {
  for (std::size_t i = 0; i < batch.entries.size(); ++i)
    store_le(body.data() + 4 * i, static_cast<std::uint32_t>(batch.entries[i].status));
}

// Length for the reply: of the block where one was found, else 0.
std::uint32_t told_length(const Entry& entry) {
  const bool known = entry.status == wire::EntryStatus::ok || entry.status == wire::EntryStatus::too_small;
  return known ? entry.value_length : 0;
}

bool sends_payload(const Batch& batch, const Entry& entry) {
  return batch.is_inline() && entry.status == wire::EntryStatus::ok;
}

void encode_get(const std::shared_ptr<Batch>& batch, const wire::Header& request, Output& output) {
  const std::size_t table = wire::kGetReplyEntryBytes * batch->entries.size();
  std::size_t payload = 0;
  for (const Entry& entry : batch->entries)
    payload += sends_payload(*batch, entry) ? entry.value_length : 0;
  const std::span<std::byte> frame = output.grow(wire::kHeaderBytes + table);
  wire::Header header = request;
  header.body_len = static_cast<std::uint32_t>(table + payload);
  wire::encode_header(header, frame.first<wire::kHeaderBytes>());
  std::byte* at = frame.data() + wire::kHeaderBytes;
  for (const Entry& entry : batch->entries) {
    store_le(at, static_cast<std::uint32_t>(entry.status));
    store_le(at + 4, told_length(entry));
    at += wire::kGetReplyEntryBytes;
  }
  for (const Entry& entry : batch->entries) {
    if (sends_payload(*batch, entry))
      output.append_shared({entry.memory, entry.value_length}, batch->payload);
  }
  if (payload != 0) output.hold(batch->inline_bytes());
}

void encode_exists(const Batch& batch, std::span<std::byte> body) {
  std::ranges::fill(body, std::byte{0});
  const std::size_t count = batch.entries.size();
  std::size_t prefix = 0;
  while (prefix < count && batch.entries[prefix].status == wire::EntryStatus::ok)
    ++prefix;
  store_le(body.data(), static_cast<std::uint32_t>(prefix));
  const std::size_t told = batch.op == BatchOp::exists_prefix ? prefix : count;
  for (std::size_t i = 0; i < told; ++i) {
    if (batch.entries[i].status != wire::EntryStatus::ok) continue;
    body[wire::kExistsReplyBytes + i / 8] |= std::byte{1} << (i % 8);
  }
}

wire::Opcode opcode_of(BatchOp op) {
  switch (op) {
    case BatchOp::put:
      return wire::Opcode::put;
    case BatchOp::get:
      return wire::Opcode::get;
    case BatchOp::exists:
    case BatchOp::exists_prefix:
      return wire::Opcode::exists;
    case BatchOp::remove:
      break;
  }
  return wire::Opcode::remove;
}

wire::Header reply_header(const wire::Header& request, std::uint32_t body_len) {
  return {.body_len = body_len,
          .opcode = static_cast<std::uint16_t>(request.opcode | wire::kReply),
          .status = 0,
          .count = request.count,
          .request_id = request.request_id,
          .dialog_id = 0};
}

}  // namespace

TransferRequest decode_transfers(const Frame& frame, const Limits& limits, bool regions) {
  check_count(frame);
  check_status(frame);
  const std::size_t table = wire::kTransferEntryBytes * frame.header.count;
  if (frame.body.size() < table) check_body(frame, table);
  TransferRequest request;
  request.entries.reserve(frame.header.count);
  for (std::size_t at = 0; at < table; at += wire::kTransferEntryBytes) {
    const auto entry = wire::decode_transfer(frame.body.subspan(at).first<wire::kTransferEntryBytes>());
    if (request.entries.empty()) request.is_inline = entry.region == wire::kRegionInline;
    check_entry(entry, request.entries.size(), request.is_inline, regions);
    request.wanted += entry.length;
    request.longest = std::max(request.longest, entry.length);
    request.entries.push_back(entry);
  }
  if (request.is_inline) {
    check_inline(frame, request, limits);
  } else {
    check_body(frame, table);
  }
  return request;
}

RegionRequest decode_register(const Frame& frame) {
  if (frame.header.count != 1) throw wire::BadBody{"REGISTER names one region"};
  check_status(frame);
  check_body(frame, wire::kRegisterBytes);
  const RegionRequest request{.offset = load_le<std::uint64_t>(frame.body.data()),
                              .length = load_le<std::uint64_t>(frame.body.data() + 8)};
  if (request.length == 0) throw wire::BadBody{"the region's length is 0"};
  return request;
}

std::uint16_t decode_unregister(const Frame& frame) {
  if (frame.header.count != 1) throw wire::BadBody{"UNREGISTER names one region"};
  check_status(frame);
  check_body(frame, wire::kRegionBytes);
  for (const std::byte reserved : frame.body.subspan(2)) {
    if (reserved != std::byte{0}) throw wire::BadBody{"a reserved field of UNREGISTER is not 0"};
  }
  return load_le<std::uint16_t>(frame.body.data());
}

std::vector<std::uint32_t> decode_lengths(const Frame& frame, const Limits& limits) {
  auto lengths = decode_numbers<std::uint32_t>(frame);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] != 0 && lengths[i] <= limits.max_value) continue;
    throw wire::BadBody{"entry " + std::to_string(i) + ": length " + std::to_string(lengths[i]) +
                        " is not 1 to " + std::to_string(limits.max_value)};
  }
  return lengths;
}

std::vector<std::uint64_t> decode_offsets(const Frame& frame) {
  return decode_numbers<std::uint64_t>(frame);
}

std::vector<kv::EngineKey> decode_keys(const Frame& frame) {
  check_count(frame);
  check_body(frame, std::uint64_t{frame.header.count} * wire::kKeyBytes);
  const bool exists = frame.header.opcode == static_cast<std::uint16_t>(wire::Opcode::exists);
  if (!exists || frame.header.status != wire::kPrefixOnly) check_status(frame);
  std::vector<kv::EngineKey> keys(frame.header.count);
  for (std::size_t i = 0; i < keys.size(); ++i)
    std::copy_n(frame.body.data() + i * wire::kKeyBytes, wire::kKeyBytes, keys[i].begin());
  return keys;
}

void encode_reply(const std::shared_ptr<Batch>& batch, Output& output) {
  const auto count = static_cast<std::uint32_t>(batch->entries.size());
  const wire::Header request{.opcode = static_cast<std::uint16_t>(opcode_of(batch->op)),
                             .count = count,
                             .request_id = batch->request_id};
  switch (batch->op) {
    case BatchOp::get:
      return encode_get(batch, reply_header(request, 0), output);
    case BatchOp::exists:
    case BatchOp::exists_prefix:
      return encode_exists(
          *batch, begin_reply(request, static_cast<std::uint32_t>(wire::kExistsReplyBytes + (count + 7) / 8),
                              output));
    case BatchOp::put:
    case BatchOp::remove:
      return encode_statuses(*batch, begin_reply(request, 4 * count, output));
  }
}

void encode_refusal(const wire::Header& request, std::uint16_t opcode, wire::FrameStatus status,
                    std::span<const std::byte> body, Output& output) {
  const wire::Header header{.body_len = static_cast<std::uint32_t>(body.size()),
                            .opcode = opcode,
                            .status = static_cast<std::uint16_t>(status),
                            .count = 0,
                            .request_id = request.request_id,
                            .dialog_id = 0};
  const std::span<std::byte> frame = output.grow(wire::kHeaderBytes + body.size());
  wire::encode_header(header, frame.first<wire::kHeaderBytes>());
  std::ranges::copy(body, frame.data() + wire::kHeaderBytes);
}

std::span<std::byte> begin_reply(const wire::Header& request, std::uint32_t body_len, Output& output) {
  const std::span<std::byte> frame = output.grow(wire::kHeaderBytes + body_len);
  wire::encode_header(reply_header(request, body_len), frame.first<wire::kHeaderBytes>());
  return frame.subspan(wire::kHeaderBytes);
}

}  // namespace akv::gateway
