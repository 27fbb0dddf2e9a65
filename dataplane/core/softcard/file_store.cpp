#include "softcard/file_store.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "base/events.hpp"

namespace akv::softcard {
namespace {

nvme::KvKey key_of(const RecordHeader& record) {
  return {.bytes = record.key, .length = record.key_length};
}

SegmentHeader segment_header(std::uint64_t sequence) {
  SegmentHeader header;
  header.sequence = sequence;
  return header;
}

bool plausible(const RecordHeader& record, const Superblock& layout, std::uint64_t sequence,
               std::uint64_t offset) {
  return record.magic == kRecordMagic && record.sequence == sequence && record.key_length >= 1 &&
         record.key_length <= nvme::kKvKeyMaxBytes && record.value_bytes <= layout.max_value_bytes &&
         offset + record_bytes(record.value_bytes) <= layout.segment_bytes &&
         (record.kind == RecordKind::value || record.kind == RecordKind::removed) &&
         record.crc == header_crc(record, layout.salt);
}

}  // namespace

FileStore::FileStore(const CardFileSpec& spec) : file_(spec), segments_(file_.superblock().segments) {
  recover();
}

std::uint32_t FileStore::max_value_bytes() const noexcept {
  return file_.superblock().max_value_bytes;
}

void FileStore::recover() {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> found;
  for (std::uint32_t index = 0; index < segments_.size(); ++index) {
    std::array<std::byte, sizeof(SegmentHeader)> raw{};
    if (!file_.read(file_.segment_offset(index), raw))
      throw std::runtime_error("the card's file can't be read");
    const auto header = nvme::read_wire<SegmentHeader>(raw);
    const bool valid = header.magic == kSegmentMagic && header.sequence != 0 &&
                       header.crc == header_crc(header, file_.superblock().salt);
    if (valid) {
      found.emplace_back(header.sequence, index);
    } else {
      free_.push_back(index);
    }
  }
  std::sort(found.begin(), found.end());
  for (const auto& [sequence, index] : found) {
    segments_[index].sequence = last_sequence_ = sequence;
    segments_[index].last_crc = header_crc(segment_header(sequence), file_.superblock().salt);
    in_use_.push_back(index);
    // Only the last segment was being written when the process ended; others are verified when read.
    replay(index, index == found.back().second);
  }
  if (in_use_.empty() && !begin_segment(0)) throw std::runtime_error("the card's file can't be written");
  while (free_.empty()) {
    if (!release_oldest()) throw std::runtime_error("the card's file can't be written");
  }
  log_event(Level::info, "store_recovered",
            {{"keys", pairs_.size()}, {"bytes", bytes_}, {"segments", in_use_.size()}});
}

void FileStore::replay(std::uint32_t segment, bool verify_values) {
  std::uint64_t offset = sizeof(SegmentHeader);
  while (const auto record = read_record(segment, offset)) {
    if (record->previous != segments_[segment].last_crc) break;  // left from before an earlier recovery
    if (verify_values && !value_verifies(*record, segment, offset)) break;  // torn: space to write over
    apply(*record, segment, offset);
    segments_[segment].last_crc = record->crc;
    offset += record_bytes(record->value_bytes);
  }
  segments_[segment].used = offset;
}

std::optional<RecordHeader> FileStore::read_record(std::uint32_t segment, std::uint64_t offset) const {
  if (offset + sizeof(RecordHeader) > file_.superblock().segment_bytes) return std::nullopt;
  std::array<std::byte, sizeof(RecordHeader)> raw{};
  if (!file_.read(file_.segment_offset(segment) + offset, raw)) return std::nullopt;
  const auto record = nvme::read_wire<RecordHeader>(raw);
  if (!plausible(record, file_.superblock(), segments_[segment].sequence, offset)) return std::nullopt;
  return record;
}

void FileStore::apply(const RecordHeader& record, std::uint32_t segment, std::uint64_t offset) {
  const auto key = key_of(record);
  if (const auto old = pairs_.find(key); old != pairs_.end()) forget(old);
  if (record.kind == RecordKind::removed) return;
  pairs_.emplace(key, Place{.segment = segment, .offset = offset, .value_bytes = record.value_bytes});
  segments_[segment].records.push_back({key, offset});
  bytes_ += record.value_bytes;
}

bool FileStore::value_verifies(const RecordHeader& record, std::uint32_t segment,
                               std::uint64_t offset) const {
  Value value;
  return read_value(key_of(record), {.segment = segment, .offset = offset, .value_bytes = record.value_bytes},
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
  auto header = segment_header(last_sequence_ + 1);
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
  const auto record = read_record(place.segment, place.offset);
  if (!record || key_of(*record) != key || record->value_bytes != place.value_bytes) return false;
  auto bytes = allocate_bytes(place.value_bytes);
  const std::span<std::byte> to(bytes.get(), place.value_bytes);
  const auto offset = file_.segment_offset(place.segment) + place.offset + sizeof(RecordHeader);
  if (!file_.read(offset, to) || crc32c(to) != record->value_crc) return false;
  value = {.bytes = std::move(bytes), .size = place.value_bytes};
  return true;
}

void FileStore::forget(Pairs::iterator pair) {
  bytes_ -= pair->second.value_bytes;
  pairs_.erase(pair);
}

}  // namespace akv::softcard
