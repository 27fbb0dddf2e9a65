// One request of the fast path, from its frame to its result.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "client/codec.hpp"
#include "client/stream.hpp"

namespace akv::client {

enum class CallKind : std::uint8_t { put, get, exists, prefix, borrow, give_back };

// A session as the fast path needs it: its stream, and what its frames depend on.
struct Session {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Codec> codec;
  nb::object lease;
  std::uint32_t max_batch;
  std::uint32_t max_value;
  nb::object cache;  // a memoryview of the read cache's memory; None where nothing is lent
};

// The GIL is held wherever it is used, but for the waiting itself. Blocks are held until the result was given
// or the call was disowned.
class Call {
 public:
  // Null where the reference client has to do it: too many entries, no room in the session now, or a block
  // that is not simply one of this session.
  [[nodiscard]] static std::unique_ptr<Call> transfer(const Session& session, CallKind kind, nb::handle keys,
                                                      nb::handle blocks, std::uint64_t dialog, bool told);
  [[nodiscard]] static std::unique_ptr<Call> keyed(const Session& session, CallKind kind, nb::handle keys,
                                                   std::uint64_t dialog, bool told);

  // Blocks that were borrowed in the session of `lease`, by their packed offsets. `with_next`: it is sent
  // when the next call is, or somebody waits for it.
  [[nodiscard]] static std::unique_ptr<Call> give_back(const Session& session, nb::handle lease,
                                                       const nb::bytes& offsets, bool told, bool with_next);

  // Waits for the reply; its result, or None where it did not come, or is not the plain answer: then
  // disown() has to follow. Raises what a signal's handler raised.
  [[nodiscard]] nb::object result(double seconds);
  // The blocks stay held and the reply, come or not, is one of the stream's others.
  void disown();
  // The result was given: the blocks are held no longer.
  [[nodiscard]] bool answered() const noexcept { return answered_; }

  [[nodiscard]] std::uint64_t request_id() const noexcept { return exchange_->request_id; }
  [[nodiscard]] const std::shared_ptr<Stream>& stream() const noexcept { return stream_; }

 private:
  Call(const Session& session, CallKind kind, nb::tuple blocks, std::shared_ptr<Exchange> exchange)
      : stream_(session.stream),
        codec_(session.codec),
        lease_(session.lease),
        cache_(session.cache),
        kind_(kind),
        blocks_(std::move(blocks)),
        exchange_(std::move(exchange)) {}

  [[nodiscard]] nb::object decode() const;

  std::shared_ptr<Stream> stream_;
  std::shared_ptr<Codec> codec_;
  nb::object lease_;
  nb::object cache_;
  CallKind kind_;
  nb::tuple blocks_;
  std::shared_ptr<Exchange> exchange_;
  bool answered_{false};
};

}  // namespace akv::client
