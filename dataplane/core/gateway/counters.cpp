#include "gateway/counters.hpp"

namespace akv::gateway {
namespace {

constexpr std::array<std::string_view, kCounters> kNames{
    "gets",
    "hits",
    "misses",
    "miss_no_card",
    "miss_not_found",
    "miss_timeout",
    "miss_disconnected",
    "miss_card_error",
    "miss_deadline",
    "miss_unneeded",
    "miss_quarantined",
    "miss_memory_lost",
    "miss_too_large",
    "miss_envelope_short",
    "miss_envelope_magic",
    "miss_envelope_version",
    "miss_envelope_crc",
    "miss_envelope_namespace",
    "miss_envelope_key",
    "miss_envelope_segment",
    "miss_envelope_length",
    "miss_payload_crc",
    "gets_too_small",
    "bytes_read",
    "gets_shared",
    "cache_hits",
    "cache_fills",
    "cache_evictions",
    "cache_stale",
    "borrowed",
    "borrow_misses",
    "puts",
    "stored",
    "lost_puts",
    "lost_no_card",
    "lost_no_space",
    "lost_timeout",
    "lost_disconnected",
    "lost_card_error",
    "lost_deadline",
    "lost_unneeded",
    "lost_quarantined",
    "lost_memory_lost",
    "puts_too_large",
    "bytes_written",
    "exists_keys",
    "exists_present",
    "exists_unanswered",
    "exists_cached",
    "deletes",
    "deletes_failed",
    "no_such_block",
    "late_releases",
    "regions_registered",
    "regions_refused",
    "regions_broken",
    "sessions_opened",
    "sessions_closed",
    "sessions_refused",
    "sessions_stalled",
    "auth_failures",
    "busy",
    "no_memory",
    "bad_requests",
    "protocol_errors",
    "busy_ns",
};

}  // namespace

std::string_view name_of(Counter counter) noexcept {
  return kNames[static_cast<std::size_t>(counter)];
}

Counter miss_counter(kv::Mismatch mismatch) noexcept {
  switch (mismatch) {
    case kv::Mismatch::short_value:
      return Counter::miss_envelope_short;
    case kv::Mismatch::magic:
      return Counter::miss_envelope_magic;
    case kv::Mismatch::version:
      return Counter::miss_envelope_version;
    case kv::Mismatch::envelope_crc:
      return Counter::miss_envelope_crc;
    case kv::Mismatch::wrong_space:
      return Counter::miss_envelope_namespace;
    case kv::Mismatch::wrong_key:
      return Counter::miss_envelope_key;
    case kv::Mismatch::wrong_segment:
      return Counter::miss_envelope_segment;
    case kv::Mismatch::wrong_length:
      return Counter::miss_envelope_length;
    case kv::Mismatch::payload_crc:
    case kv::Mismatch::none:
      break;
  }
  return Counter::miss_payload_crc;
}

}  // namespace akv::gateway
