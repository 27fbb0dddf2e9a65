// How a file store finds out what its file holds: by the tables of full segments, and by the records of the
// segment that was written last.
#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>

#include "base/events.hpp"
#include "softcard/file_store.hpp"

namespace akv::softcard {
namespace {

constexpr std::size_t kScanBytes = std::size_t{64} << 10U;
// With so many segments a second one stays free, so that more than one segment of pairs can move at a time.
constexpr std::size_t kManySegments = 32;
constexpr const char* kRemedy = "replace the medium, or remove the file to begin with an empty card";

}  // namespace

FileStore::FileStore(const CardFileSpec& spec)
    : file_(spec),
      max_keys_(spec.max_keys == 0 ? default_max_keys(spec.capacity) : spec.max_keys),
      segments_(file_.superblock().segments) {
  spare_ = segments_.size() >= kManySegments ? 2 : 1;
  recover();
}

void FileStore::recover() {
  const auto found = find_segments();
  for (std::size_t i = 0; i < found.size(); ++i) {
    replay_segment(found, i);
    while (!has_room_for_key() && release_oldest(false)) {
    }
  }
  // Segments whose headers rotted had numbers that nobody knows any more, and none may be used twice.
  last_sequence_ += segments_.size() + std::random_device{}();
  bool writable = !in_use_.empty() || begin_segment(0);
  while (writable && free_.size() < spare_)
    writable = release_oldest(false);
  if (!writable) throw std::runtime_error(std::string("the card's file can't be written; ") + kRemedy);
  log_event(gaps_ == 0 ? Level::info : Level::warning, "store_recovered",
            {{"keys", index_.size()},
             {"bytes", bytes_},
             {"segments", in_use_.size()},
             {"gaps", gaps_},
             {"read_bytes", file_.bytes_read()},
             {"index_bytes", index_.memory_bytes()}});
}

void FileStore::replay_segment(const std::vector<Recovered>& found, std::size_t number) {
  const auto& [header, index] = found[number];
  segments_[index].sequence = last_sequence_ = header.sequence;
  segments_[index].last_crc = header.crc;
  in_use_.push_back(index);
  open_.clear();
  if (replay_table(index)) return;
  const bool newest = number + 1 == found.size();
  const bool end_known = !newest && found[number + 1].header.previous_sequence == header.sequence;
  const std::uint64_t whole = segment_bytes();
  replay(index, end_known ? std::min(found[number + 1].header.previous_used, whole) : whole, newest);
}

// The segments in use, oldest first; the others are free.
std::vector<FileStore::Recovered> FileStore::find_segments() {
  std::vector<Recovered> found;
  for (std::uint32_t index = 0; index < segments_.size(); ++index) {
    std::array<std::byte, sizeof(SegmentHeader)> raw{};
    // Stepping over it is no way: later versions of its pairs would not mark them, and the medium may read
    // it again one day.
    if (!file_.read(at(index, 0), raw)) {
      throw std::system_error(errno, std::generic_category(),
                              "the card's file can't be read at byte " + std::to_string(at(index, 0)) +
                                  ", where a segment begins; " + kRemedy);
    }
    const auto header = nvme::read_wire<SegmentHeader>(raw);
    const bool valid =
        header.magic == kSegmentMagic && header.sequence != 0 && header.crc == header_crc(header, salt());
    if (valid) {
      found.push_back({header, index});
    } else {
      free_.push_back(index);
    }
  }
  std::ranges::sort(found, {}, [](const Recovered& segment) { return segment.header.sequence; });
  return found;
}

// True when the segment is sealed and its table could be taken.
bool FileStore::replay_table(std::uint32_t segment) {
  std::array<std::byte, sizeof(SegmentTrailer)> raw{};
  if (!file_.read(at(segment, segment_bytes() - align()), raw)) return false;
  const auto trailer = nvme::read_wire<SegmentTrailer>(raw);
  auto& known = segments_[segment];
  const bool valid = trailer.magic == kTrailerMagic && trailer.sequence == known.sequence &&
                     trailer.crc == header_crc(trailer, salt()) && trailer.used <= segment_bytes() &&
                     tail_bytes(trailer.records, align()) <= segment_bytes() - trailer.used;
  if (!valid) return false;
  known.records = trailer.records;
  known.used = trailer.used;
  const auto table = read_table(segment);
  if (!table) {
    log_event(Level::error, "table_unreadable", {{"segment", segment}});
    return false;
  }
  known.sealed = true;
  for (const auto& entry : *table) {
    if (entry.crc == header_crc(entry, salt() + known.sequence)) apply(entry, segment, 0);
  }
  return true;
}

// Takes up the records before `end`. Ones that can't be read are stepped over: their pairs are lost, and
// older versions of them were marked. Only the newest segment was being written when the process ended, so
// its values are verified now; others are when they are read.
void FileStore::replay(std::uint32_t segment, std::uint64_t end, bool newest) {
  auto& known = segments_[segment];
  std::uint64_t offset = align();
  known.used = offset;
  bool linked = true;  // the record before this one was read
  while (offset < end) {
    const auto found = read_record(segment, known.sequence, offset);
    if (!found || (linked && found->record.previous != known.last_crc)) {
      const auto next = find_record(segment, offset + align(), end);
      if (!next) break;
      offset = *next;
      linked = false;
      continue;
    }
    const RecordHeader& record = found->record;
    const bool torn = newest && !value_verifies(record, segment, offset);
    if (!torn) replay_record(*found, segment, offset, newest);
    offset += record_bytes(record.value_bytes, align());
    if (!torn) {
      if (!linked) ++gaps_;
      known.last_crc = record.crc;
      known.used = offset;
    }  // else, when nothing follows, it is space to write over
    linked = !torn;
  }
}

void FileStore::replay_record(const Found& found, std::uint32_t segment, std::uint64_t offset, bool newest) {
  TableEntry entry{.key = found.record.key,
                   .unit = static_cast<std::uint32_t>(offset / kRecordAlign),
                   .value_bytes = found.record.value_bytes,
                   .key_length = found.record.key_length,
                   .kind = found.record.kind};
  entry.crc = header_crc(entry, salt() + segments_[segment].sequence);
  if (newest) {
    open_.push_back(entry);
    if (found.outdated) open_.back().crc ^= kOutdatedMark;
  }
  if (!found.outdated) apply(entry, segment, 0);
}

// The first record at or behind `from` that begins before `end`.
std::optional<std::uint64_t> FileStore::find_record(std::uint32_t segment, std::uint64_t from,
                                                    std::uint64_t end) const {
  while (from + sizeof(RecordHeader) <= end) {
    const std::size_t size = std::min<std::uint64_t>(kScanBytes, (end - from) / kRecordAlign * kRecordAlign);
    if (const auto part = file_.read_shared(at(segment, from), size)) {
      for (std::size_t step = 0; step + sizeof(RecordHeader) <= size; step += align()) {
        const std::span<const std::byte> raw(part.get() + step, sizeof(RecordHeader));
        if (decode(raw, segments_[segment].sequence, from + step)) return from + step;
      }
    }
    from += size;
  }
  return std::nullopt;
}

bool FileStore::value_verifies(const RecordHeader& record, std::uint32_t segment,
                               std::uint64_t offset) const {
  const IndexEntry entry{.key = {record.key, record.key_length},
                         .segment = segment,
                         .unit = static_cast<std::uint32_t>(offset / kRecordAlign),
                         .value_bytes = record.value_bytes};
  Value value;
  return read_whole({entry, segments_[segment].sequence}, value).has_value();
}

}  // namespace akv::softcard
