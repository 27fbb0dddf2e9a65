// From the bodies of requests to batches, and from batches to the bodies of replies. No I/O.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gateway/batch.hpp"
#include "gateway/frame_reader.hpp"
#include "gateway/limits.hpp"
#include "gateway/output.hpp"
#include "gateway/wire.hpp"

namespace akv::gateway {

// PUT or GET as the client asked for it. All lengths are checked against the frame.
struct TransferRequest {
  std::vector<wire::TransferEntry> entries;
  bool is_inline{false};
  std::uint64_t wanted{0};   // sum of the entries' lengths
  std::uint32_t longest{0};  // of the entries' lengths
};

// A part of the file whose descriptor came with the frame.
struct RegionRequest {
  std::uint64_t offset{0};
  std::uint64_t length{0};
};

// These throw wire::BadBody.
// `regions`: entries may name regions, not only the arena.
[[nodiscard]] TransferRequest decode_transfers(const Frame& frame, const Limits& limits, bool regions);
[[nodiscard]] RegionRequest decode_register(const Frame& frame);
[[nodiscard]] std::uint16_t decode_unregister(const Frame& frame);
[[nodiscard]] std::vector<std::uint32_t> decode_lengths(const Frame& frame, const Limits& limits);
[[nodiscard]] std::vector<std::uint64_t> decode_offsets(const Frame& frame);
[[nodiscard]] std::vector<kv::EngineKey> decode_keys(const Frame& frame);

// The OK reply to a batch whose entries all have a status.
void encode_reply(const std::shared_ptr<Batch>& batch, Output& output);

// A frame with a status other than OK; `text` is for people.
void encode_refusal(const wire::Header& request, std::uint16_t opcode, wire::FrameStatus status,
                    std::span<const std::byte> body, Output& output);

// Header of the OK reply to `request`, and room for its body.
[[nodiscard]] std::span<std::byte> begin_reply(const wire::Header& request, std::uint32_t body_len,
                                               Output& output);

}  // namespace akv::gateway
