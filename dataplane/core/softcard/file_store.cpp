#include "softcard/file_store.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <stdexcept>
#include <utility>

#include "base/events.hpp"

namespace akv::softcard {
namespace {

constexpr std::size_t kScanBytes = std::size_t{64} << 10U;

nvme::KvKey key_of(const RecordHeader& record) {
  return {.bytes = record.key, .length = record.key_length};
}

bool plausible(const RecordHeader& record, const Superblock& layout, std::uint64_t sequence,
               std::uint64_t offset) {
  return record.magic == kRecordMagic && record.sequence == sequence && record.key_length >= 1 &&
         record.key_length <= nvme::kKvKeyMaxBytes && record.value_bytes <= layout.max_value_bytes &&
         offset + record_bytes(record.value_bytes) <= layout.segment_bytes &&
         (record.kind == RecordKind::value || record.kind == RecordKind::removed);
}

}  // namespace

FileStore::FileStore(const CardFileSpec& spec) : file_(spec), segments_(file_.superblock().segments) {
  recover();
}

std::uint32_t FileStore::max_value_bytes() const noexcept {
  return file_.superblock().max_value_bytes;
}

void FileStore::recover() {
  const auto found = find_segments();
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& [header, index] = found[i];
    segments_[index].sequence = last_sequence_ = header.sequence;
    segments_[index].last_crc = header.crc;
    in_use_.push_back(index);
    const bool newest = i + 1 == found.size();
    const bool end_known = !newest && found[i + 1].header.previous_sequence == header.sequence;
    const std::uint64_t whole = file_.superblock().segment_bytes;
    replay(index, end_known ? std::min(found[i + 1].header.previous_used, whole) : whole, newest);
  }
  // Segments whose headers rotted had numbers that nobody knows any more, and none may be used twice.
  last_sequence_ += segments_.size() + std::random_device{}();
  if (in_use_.empty() && !begin_segment(0)) throw std::runtime_error("the card's file can't be written");
  while (free_.empty()) {
    if (!release_oldest()) throw std::runtime_error("the card's file can't be written");
  }
  log_event(gaps_ == 0 ? Level::info : Level::warning, "store_recovered",
            {{"keys", pairs_.size()}, {"bytes", bytes_}, {"segments", in_use_.size()}, {"gaps", gaps_}});
}

// The segments in use, oldest first; the others are free.
std::vector<FileStore::Recovered> FileStore::find_segments() {
  std::vector<Recovered> found;
  for (std::uint32_t index = 0; index < segments_.size(); ++index) {
    std::array<std::byte, sizeof(SegmentHeader)> raw{};
    if (!file_.read(file_.segment_offset(index), raw))
      throw std::runtime_error("the card's file can't be read");
    const auto header = nvme::read_wire<SegmentHeader>(raw);
    const bool valid = header.magic == kSegmentMagic && header.sequence != 0 &&
                       header.crc == header_crc(header, file_.superblock().salt);
    if (valid) {
      found.push_back({header, index});
    } else {
      free_.push_back(index);
    }
  }
  std::ranges::sort(found, {}, [](const Recovered& segment) { return segment.header.sequence; });
  return found;
}

// Takes up the records before `end`. Ones that can't be read are stepped over: their pairs are lost, and
// older versions of them were marked. Only the newest segment was being written when the process ended, so
// its values are verified now; others are when they are read.
void FileStore::replay(std::uint32_t segment, std::uint64_t end, bool newest) {
  std::uint64_t offset = sizeof(SegmentHeader);
  segments_[segment].used = offset;
  bool linked = true;  // the record before this one was read
  while (offset < end) {
    const auto found = read_record(segment, offset);
    if (!found || (linked && found->record.previous != segments_[segment].last_crc)) {
      const auto next = find_record(segment, offset + kRecordAlign, end);
      if (!next) break;
      offset = *next;
      linked = false;
      continue;
    }
    const RecordHeader& record = found->record;
    const bool torn = newest && !value_verifies(record, segment, offset);
    if (!torn && !found->outdated) apply(record, segment, offset);
    offset += record_bytes(record.value_bytes);
    if (!torn) {
      if (!linked) ++gaps_;
      segments_[segment].last_crc = record.crc;
      segments_[segment].used = offset;
    }  // else, when nothing follows, it is space to write over
    linked = !torn;
  }
}

std::optional<FileStore::Found> FileStore::decode(std::span<const std::byte, sizeof(RecordHeader)> raw,
                                                  std::uint32_t segment, std::uint64_t offset) const {
  Found found{.record = nvme::read_wire<RecordHeader>(raw)};
  if (!plausible(found.record, file_.superblock(), segments_[segment].sequence, offset)) return std::nullopt;
  const std::uint32_t crc = header_crc(found.record, file_.superblock().salt);
  found.outdated = found.record.crc == (crc ^ kOutdatedMark);
  if (found.record.crc != crc && !found.outdated) return std::nullopt;
  found.record.crc = crc;
  return found;
}

std::optional<FileStore::Found> FileStore::read_record(std::uint32_t segment, std::uint64_t offset) const {
  if (offset + sizeof(RecordHeader) > file_.superblock().segment_bytes) return std::nullopt;
  std::array<std::byte, sizeof(RecordHeader)> raw{};
  if (!file_.read(file_.segment_offset(segment) + offset, raw)) return std::nullopt;
  return decode(raw, segment, offset);
}

// The first record at or behind `from` that begins before `end`.
std::optional<std::uint64_t> FileStore::find_record(std::uint32_t segment, std::uint64_t from,
                                                    std::uint64_t end) const {
  std::vector<std::byte> part(kScanBytes);
  while (from + sizeof(RecordHeader) <= end) {
    const std::size_t size = std::min<std::uint64_t>(kScanBytes, (end - from) / kRecordAlign * kRecordAlign);
    if (file_.read(file_.segment_offset(segment) + from, std::span(part).first(size))) {
      for (std::size_t at = 0; at < size; at += kRecordAlign) {
        const std::span<const std::byte, sizeof(RecordHeader)> raw(part.data() + at, sizeof(RecordHeader));
        if (decode(raw, segment, from + at)) return from + at;
      }
    }
    from += size;
  }
  return std::nullopt;
}

void FileStore::apply(const RecordHeader& record, std::uint32_t segment, std::uint64_t offset) {
  const auto key = key_of(record);
  if (const auto old = pairs_.find(key); old != pairs_.end()) {
    mark_outdated(old->second);
    forget(old);
  }
  if (record.kind == RecordKind::removed) return;
  pairs_.emplace(
      key, Place{.offset = offset, .segment = segment, .value_bytes = record.value_bytes, .crc = record.crc});
  segments_[segment].records.push_back({key, offset});
  bytes_ += record.value_bytes;
}

// After the newer record is written: should that be lost later, by rot or a power cut, the key is gone and
// not old. Where the medium refuses, the newer record alone tells.
void FileStore::mark_outdated(const Place& place) {
  const std::uint32_t marked = place.crc ^ kOutdatedMark;
  const auto at = file_.segment_offset(place.segment) + place.offset + offsetof(RecordHeader, crc);
  if (file_.write(at, nvme::wire_bytes(marked))) return;
  log_event(Level::error, "record_not_marked", {{"segment", place.segment}, {"offset", place.offset}});
}

bool FileStore::value_verifies(const RecordHeader& record, std::uint32_t segment,
                               std::uint64_t offset) const {
  Value value;
  return read_value(key_of(record), {.offset = offset, .segment = segment, .value_bytes = record.value_bytes},
                    value);
}

nvme::Status FileStore::put(const nvme::KvKey& key, Value value) {
  if (value.size > max_value_bytes()) return nvme::kCapacityExceeded;
  return append(RecordKind::value, key, value.view()) ? nvme::kSuccess : nvme::kInternalError;
}

nvme::Status FileStore::get(const nvme::KvKey& key, Value& value) {
  const auto found = pairs_.find(key);
  if (found == pairs_.end()) return nvme::kKvKeyDoesNotExist;
  if (!read_value(key, found->second, value)) {
    log_event(Level::error, "record_corrupt",
              {{"segment", found->second.segment}, {"offset", found->second.offset}});
    mark_outdated(found->second);
    forget(found);
    ++corrupt_;
    return nvme::kKvUnrecoveredError;
  }
  found->second.retrieved = true;
  return nvme::kSuccess;
}

nvme::Status FileStore::remove(const nvme::KvKey& key) {
  if (!pairs_.contains(key)) return nvme::kKvKeyDoesNotExist;
  return append(RecordKind::removed, key, {}) ? nvme::kSuccess : nvme::kInternalError;
}

void FileStore::walk(const nvme::KvKey& start, const std::function<bool(const nvme::KvKey&)>& visit) const {
  for (auto pair = pairs_.lower_bound(start); pair != pairs_.end() && visit(pair->first); ++pair) {
  }
}

StoreStats FileStore::stats() const noexcept {
  return {.keys = pairs_.size(),
          .bytes = bytes_,
          .capacity = file_.superblock().capacity,
          .evictions = evictions_,
          .corrupt = corrupt_};
}

bool FileStore::append(RecordKind kind, const nvme::KvKey& key, std::span<const std::byte> value) {
  const auto bytes = record_bytes(value.size());
  if (!make_room(bytes)) return false;
  const auto index = in_use_.back();
  auto& segment = segments_[index];
  RecordHeader record{.kind = kind,
                      .key_length = key.length,
                      .sequence = segment.sequence,
                      .value_bytes = static_cast<std::uint32_t>(value.size()),
                      .value_crc = crc32c(value),
                      .key = key.bytes,
                      .previous = segment.last_crc};
  seal(record, file_.superblock().salt);
  if (!file_.write(file_.segment_offset(index) + segment.used, nvme::wire_bytes(record), value)) return false;
  apply(record, index, segment.used);
  segment.used += bytes;
  segment.last_crc = record.crc;
  return true;
}

bool FileStore::make_room(std::uint64_t bytes) {
  if (segments_[in_use_.back()].used + bytes <= file_.superblock().segment_bytes) return true;
  if (free_.empty()) return false;
  const auto next = free_.front();
  if (!begin_segment(next)) return false;
  // One free segment stays ready, so that reinsertion always has a place to go.
  return !free_.empty() || release_oldest();
}

bool FileStore::begin_segment(std::uint32_t index) {
  SegmentHeader header;
  header.sequence = last_sequence_ + 1;
  if (!in_use_.empty()) {
    header.previous_sequence = segments_[in_use_.back()].sequence;
    header.previous_used = segments_[in_use_.back()].used;
  }
  seal(header, file_.superblock().salt);
  if (!file_.write(file_.segment_offset(index), nvme::wire_bytes(header))) return false;
  std::erase(free_, index);
  in_use_.push_back(index);
  segments_[index] = {
      .sequence = ++last_sequence_, .used = sizeof(SegmentHeader), .last_crc = header.crc, .records = {}};
  return true;
}

// Drops the oldest segment's pairs, but for those that move to the newest segment as long as there is room:
// pairs retrieved since they were written, and all of them while live values fill less than half of the file.
// Then it is replaced and removed pairs that take the space, and dropping live ones would be no eviction but
// a loss.
bool FileStore::release_oldest() {
  const auto index = in_use_.front();
  const auto records = std::exchange(segments_[index].records, {});
  const bool sparse = bytes_ < segments_.size() * file_.superblock().segment_bytes / 2;
  for (const auto& written : records) {
    const auto pair = pairs_.find(written.key);
    const bool live =
        pair != pairs_.end() && pair->second.segment == index && pair->second.offset == written.offset;
    if (!live) continue;
    if ((pair->second.retrieved || sparse) && reinsert(written.key, pair->second)) continue;
    forget(pair);
    ++evictions_;
  }
  const std::array<std::byte, sizeof(SegmentHeader)> blank{};
  if (!file_.write(file_.segment_offset(index), blank)) return false;
  segments_[index] = {};
  in_use_.pop_front();
  free_.push_back(index);
  return true;
}

bool FileStore::reinsert(const nvme::KvKey& key, const Place& place) {
  const auto& newest = segments_[in_use_.back()];
  if (in_use_.back() == place.segment) return false;
  // The newest segment was begun for a record that has still to fit.
  const auto reserved = record_bytes(max_value_bytes());
  if (newest.used + record_bytes(place.value_bytes) + reserved > file_.superblock().segment_bytes)
    return false;
  Value value;
  return read_value(key, place, value) && append(RecordKind::value, key, value.view());
}

bool FileStore::read_value(const nvme::KvKey& key, const Place& place, Value& value) const {
  const auto found = read_record(place.segment, place.offset);
  if (!found || key_of(found->record) != key || found->record.value_bytes != place.value_bytes) return false;
  auto bytes = allocate_bytes(place.value_bytes);
  const std::span<std::byte> to(bytes.get(), place.value_bytes);
  const auto offset = file_.segment_offset(place.segment) + place.offset + sizeof(RecordHeader);
  if (!file_.read(offset, to) || crc32c(to) != found->record.value_crc) return false;
  value = {.bytes = std::move(bytes), .size = place.value_bytes};
  return true;
}

void FileStore::forget(Pairs::iterator pair) {
  bytes_ -= pair->second.value_bytes;
  pairs_.erase(pair);
}

}  // namespace akv::softcard
