// Layout of a card's file: a superblock of 4,096 bytes, then segments of equal size. A segment is a header,
// records, each a header and a value, and at its end, once it is full, a table of its records and a trailer
// that says where they are. Headers, records, the table and the trailer begin at multiples of the file's
// alignment: 64 bytes, or 4,096 for direct I/O. Little-endian, natural alignment.
//
// Order is what makes recovery right: segments carry a rising sequence number and records lie in the order of
// their stores, so replaying segments by number and records by place gives the last state. Each record names
// its segment's number and the record before it, so leftovers of an earlier use of the space are told apart;
// and header checksums are salted with a number that no client knows, so no value can pass for a record.
//
// A pair that is replaced or removed is marked so in its own record: whatever becomes of the newer record,
// the old one does not come back. The mark stands in the table's entry too, because recovery reads the tables
// and not the records.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/crc32c.hpp"
#include "nvme/kv.hpp"
#include "nvme/wire.hpp"

namespace akv::softcard {

inline constexpr std::uint64_t kSuperblockBytes = 4096;
inline constexpr std::uint64_t kRecordAlign = 64;
inline constexpr std::uint64_t kFileMagic = 0x3144524143564B41;  // "AKVCARD1"
inline constexpr std::uint64_t kDirectAlign = 4096;
inline constexpr std::uint32_t kFileVersion = 3;
inline constexpr std::uint32_t kSegmentMagic = 0x47455341;  // "ASEG"
inline constexpr std::uint32_t kTrailerMagic = 0x444E4541;  // "AEND"
inline constexpr std::uint32_t kRecordMagic = 0x43455241;   // "AREC"
// Exclusive-or'ed with a header's checksum in place: the pair was replaced or removed.
inline constexpr std::uint32_t kOutdatedMark = 0x44414544;  // "DEAD"

struct Superblock {
  std::uint64_t magic{kFileMagic};
  std::uint32_t version{kFileVersion};
  std::uint32_t segments{0};
  std::uint64_t segment_bytes{0};
  std::uint64_t capacity{0};  // as asked for on the command line
  std::uint64_t salt{0};
  std::uint32_t max_value_bytes{0};
  char serial[20]{};                  // padded with spaces
  std::uint32_t align{kRecordAlign};  // or kDirectAlign
  std::uint32_t crc{0};               // of the bytes before it
};
static_assert(sizeof(Superblock) == 72 && offsetof(Superblock, crc) == 68);

struct SegmentHeader {
  std::uint32_t magic{kSegmentMagic};
  std::uint32_t reserved{0};
  std::uint64_t sequence{0};
  std::uint64_t previous_sequence{0};  // of the segment that was written before this one
  std::uint64_t previous_used{0};      // and where its records end
  std::uint8_t padding[28]{};
  std::uint32_t crc{0};  // salted, of the bytes before it
};
static_assert(sizeof(SegmentHeader) == kRecordAlign && offsetof(SegmentHeader, crc) == 60);

enum class RecordKind : std::uint8_t { value = 1, removed = 2 };

struct RecordHeader {
  std::uint32_t magic{kRecordMagic};
  RecordKind kind{RecordKind::value};
  std::uint8_t key_length{0};
  std::uint16_t reserved{0};
  std::uint64_t sequence{0};  // of the segment
  std::uint32_t value_bytes{0};
  std::uint32_t value_crc{0};
  std::array<std::byte, nvme::kKvKeyMaxBytes> key{};
  std::uint32_t previous{0};  // crc of the header before this one in the segment
  std::uint8_t padding[16]{};
  std::uint32_t crc{0};  // salted, of the bytes before it; marked once outdated
};
static_assert(sizeof(RecordHeader) == kRecordAlign && offsetof(RecordHeader, crc) == 60);

// One for each record of a full segment, in their order.
struct TableEntry {
  std::array<std::byte, nvme::kKvKeyMaxBytes> key{};
  std::uint32_t unit{0};  // the record's offset in the segment / kRecordAlign
  std::uint32_t value_bytes{0};
  std::uint8_t key_length{0};
  RecordKind kind{RecordKind::value};
  std::uint16_t reserved{0};
  std::uint32_t crc{0};  // salted, with the segment's number; marked once outdated
};
static_assert(sizeof(TableEntry) == 32 && offsetof(TableEntry, crc) == 28);

struct SegmentTrailer {
  std::uint32_t magic{kTrailerMagic};
  std::uint32_t records{0};
  std::uint64_t sequence{0};
  std::uint64_t used{0};  // where the records end
  std::uint8_t padding[36]{};
  std::uint32_t crc{0};  // salted, of the bytes before it
};
static_assert(sizeof(SegmentTrailer) == kRecordAlign && offsetof(SegmentTrailer, crc) == 60);

template <nvme::WireStruct T>
[[nodiscard]] std::uint32_t header_crc(const T& header, std::uint64_t salt) noexcept {
  Crc32c crc;
  crc.update(nvme::wire_bytes(salt));
  crc.update(nvme::wire_bytes(header).first(offsetof(T, crc)));
  return crc.value();
}

template <nvme::WireStruct T>
void seal(T& header, std::uint64_t salt) noexcept {
  header.crc = header_crc(header, salt);
}

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

[[nodiscard]] constexpr std::uint64_t record_bytes(std::uint64_t value_bytes,
                                                   std::uint64_t align = kRecordAlign) noexcept {
  return round_up(sizeof(RecordHeader) + value_bytes, align);
}

// Of a table with so many entries and the trailer behind it.
[[nodiscard]] constexpr std::uint64_t tail_bytes(std::uint64_t records, std::uint64_t align) noexcept {
  return round_up(records * sizeof(TableEntry), align) + align;
}

}  // namespace akv::softcard
