#include "softcard/file_store.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/events.hpp"

namespace akv::softcard {
namespace {

// Full segments whose retrieved pairs move before room is made by plain eviction: bounds the work of one put.
constexpr int kMovingRounds = 4;

nvme::KvKey key_of(const TableEntry& entry) {
  return {.bytes = entry.key, .length = entry.key_length};
}

}  // namespace

std::uint32_t FileStore::max_value_bytes() const noexcept {
  return file_.superblock().max_value_bytes;
}

std::optional<std::uint32_t> FileStore::find(const nvme::KvKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto* const entry = index_.find(key);
  return entry == nullptr ? std::nullopt : std::optional(entry->value_bytes);
}

void FileStore::walk(const nvme::KvKey& start, const std::function<bool(const nvme::KvKey&)>& visit) const {
  const std::lock_guard lock(mutex_);
  index_.walk(start, [&](const IndexEntry& entry) { return visit(entry.key); });
}

StoreStats FileStore::stats() const noexcept {
  const std::lock_guard lock(mutex_);
  return {.keys = index_.size(),
          .bytes = bytes_,
          .capacity = file_.superblock().capacity,
          .evictions = evictions_,
          .moves = moves_,
          .corrupt = corrupt_,
          .index_bytes = index_.memory_bytes(),
          .max_keys = max_keys_};
}

void FileStore::flush() {
  settle();
  file_.sync();
}

// One at a time: should memory run out, the others are still known.
void FileStore::settle() {
  while (const auto place = first_unreadable()) {
    mark_outdated(*place);
    const std::lock_guard lock(mutex_);
    unreadable_.pop_front();
  }
}

std::optional<FileStore::Place> FileStore::first_unreadable() const {
  const std::lock_guard lock(mutex_);
  return unreadable_.empty() ? std::nullopt : std::optional(unreadable_.front());
}

nvme::Status FileStore::put(const nvme::KvKey& key, Value value, std::uint8_t options) {
  settle();
  if (value.size > max_value_bytes()) return nvme::kCapacityExceeded;
  const bool known = find(key).has_value();
  const auto status = check_store_options(known, options);
  if (status != nvme::kSuccess) return status;
  if (!known && !make_room_for_key()) return nvme::kInternalError;
  return write_pair(RecordKind::value, key, value.view());
}

nvme::Status FileStore::remove(const nvme::KvKey& key) {
  settle();
  if (!find(key)) return nvme::kKvKeyDoesNotExist;
  return write_pair(RecordKind::removed, key, {});
}

// Space that can't be written is given up with the rest of its segment, and the next segment tried once.
nvme::Status FileStore::write_pair(RecordKind kind, const nvme::KvKey& key,
                                   std::span<const std::byte> value) {
  const auto bytes = record_bytes(value.size(), align());
  for (int tries = 0; tries < 2; ++tries) {
    errno = 0;
    if (make_room(bytes) && append(kind, key, value, 0)) return nvme::kSuccess;
    const int error = errno;
    tell_refused_write(error);
    if (error == ENOSPC) return nvme::kCapacityExceeded;
    int moving_rounds = 0;
    if (tries == 0 && !next_segment(moving_rounds)) break;
  }
  return nvme::kInternalError;
}

void FileStore::tell_refused_write(int error) {
  if (const auto times = refused_writes_.count(); times != 0) {
    log_event(Level::error, "file_write_failed",
              {{"segment", in_use_.back()}, {"errno", error}, {"times", times}});
  }
}

bool FileStore::append(RecordKind kind, const nvme::KvKey& key, std::span<const std::byte> value,
                       std::uint8_t chances) {
  const auto index = in_use_.back();
  const auto record = make_record(kind, key, value);
  if (!file_.write(at(index, segments_[index].used), nvme::wire_bytes(record.header), value)) return false;
  take_place(record);
  apply(record.entry, index, chances);
  return true;
}

FileStore::NewRecord FileStore::make_record(RecordKind kind, const nvme::KvKey& key,
                                            std::span<const std::byte> value) const {
  const auto& segment = segments_[in_use_.back()];
  NewRecord made{.header = {.kind = kind,
                            .key_length = key.length,
                            .sequence = segment.sequence,
                            .value_bytes = static_cast<std::uint32_t>(value.size()),
                            .value_crc = crc32c(value),
                            .key = key.bytes,
                            .previous = segment.last_crc},
                 .entry = {.key = key.bytes,
                           .unit = static_cast<std::uint32_t>(segment.used / kRecordAlign),
                           .value_bytes = static_cast<std::uint32_t>(value.size()),
                           .key_length = key.length,
                           .kind = kind}};
  seal(made.header, salt());
  made.entry.crc = header_crc(made.entry, salt() + segment.sequence);
  return made;
}

// The next record comes behind this one.
void FileStore::take_place(const NewRecord& record) {
  auto& segment = segments_[in_use_.back()];
  open_.push_back(record.entry);
  segment.used += record_bytes(record.header.value_bytes, align());
  segment.last_crc = record.header.crc;
}

// The record is in the file: the index follows, and what it replaces is marked.
void FileStore::apply(const TableEntry& record, std::uint32_t segment, std::uint8_t chances) {
  const auto key = key_of(record);
  const auto old = place_of(key);
  {
    const std::lock_guard lock(mutex_);
    if (const auto* const entry = index_.find(key)) forget(*entry);
    if (record.kind == RecordKind::value) {
      index_.insert({.key = key,
                     .chances = chances,
                     .segment = segment,
                     .unit = record.unit,
                     .value_bytes = record.value_bytes});
      bytes_ += record.value_bytes;
      space_ += pair_space(record.value_bytes);
      ++segments_[segment].live;
    }
  }
  if (old) mark_outdated(*old);
}

// After the newer record is written: should that be lost later, by rot or a power cut, the key is gone and
// not old. Where the medium refuses, the newer record alone tells.
void FileStore::mark_outdated(const Place& place) {
  const auto segment = place.entry.segment;
  const auto& known = segments_[segment];
  if (known.sequence != place.sequence) return;  // its space was given away since
  const auto offset = std::uint64_t{place.entry.unit} * kRecordAlign;
  const auto found = read_record(segment, place.sequence, offset);
  const std::uint32_t marked = found ? found->record.crc ^ kOutdatedMark : 0;
  bool done = file_.patch(at(segment, offset + offsetof(RecordHeader, crc)), nvme::wire_bytes(marked));
  if (segment == in_use_.back() && !known.sealed) {
    const auto entry = std::ranges::lower_bound(open_, place.entry.unit, {}, &TableEntry::unit);
    if (entry != open_.end() && entry->unit == place.entry.unit) {
      entry->crc = header_crc(*entry, salt() + place.sequence) ^ kOutdatedMark;
    }
  } else if (known.sealed) {
    done = mark_in_table(place) && done;
  }
  if (done) return;
  if (const auto times = unmarked_records_.count(); times != 0) {
    log_event(Level::error, "record_not_marked",
              {{"segment", segment}, {"offset", offset}, {"times", times}});
  }
}

// By halving: entries lie in the order of their records.
bool FileStore::mark_in_table(const Place& place) {
  const auto segment = place.entry.segment;
  const auto table = table_offset(segments_[segment].records);
  std::uint32_t low = 0;
  std::uint32_t high = segments_[segment].records;
  while (low < high) {
    const auto middle = low + (high - low) / 2;
    const auto where = at(segment, table + middle * sizeof(TableEntry));
    std::array<std::byte, sizeof(TableEntry)> raw{};
    if (!file_.read(where, raw)) return false;
    const auto entry = nvme::read_wire<TableEntry>(raw);
    if (entry.unit == place.entry.unit) {
      const auto marked = header_crc(entry, salt() + place.sequence) ^ kOutdatedMark;
      return file_.patch(where + offsetof(TableEntry, crc), nvme::wire_bytes(marked));
    }
    (entry.unit < place.entry.unit ? low : high) = entry.unit < place.entry.unit ? middle + 1 : middle;
  }
  return false;
}

// Room for the record and its line in the table.
bool FileStore::fits(std::uint64_t bytes) const noexcept {
  const auto& newest = segments_[in_use_.back()];
  return !newest.sealed && newest.used + bytes + tail_bytes(open_.size() + 1, align()) <= segment_bytes();
}

// What moves may fill the next segment at once; then the one after it is begun, and so on.
bool FileStore::make_room(std::uint64_t bytes) {
  int moving_rounds = kMovingRounds;
  while (!fits(bytes)) {
    if (!next_segment(moving_rounds)) return false;
  }
  return true;
}

bool FileStore::has_room_for_key() const {
  const std::lock_guard lock(mutex_);
  return index_.size() + staged_.size() < max_keys_;
}

// The index is bounded as well as the file: where values are short, the oldest segments go before the file is
// full.
bool FileStore::make_room_for_key() {
  while (!has_room_for_key()) {
    int moving_rounds = 0;
    if (in_use_.size() == 1 && !next_segment(moving_rounds)) return false;
    if (!has_room_for_key() && !release_oldest(false)) return false;
  }
  return true;
}

// Begins the next segment and sees to it that others are free for the time after.
bool FileStore::next_segment(int& moving_rounds) {
  if (free_.empty() && !release_oldest(false)) return false;
  seal_newest();
  if (!begin_segment(free_.front())) return false;
  while (free_.size() < spare_) {
    if (!release_oldest(moving_rounds-- > 0)) return false;
  }
  return true;
}

// Its table and trailer. Where the medium refuses, its records are found one by one.
void FileStore::seal_newest() {
  const auto index = in_use_.back();
  auto& segment = segments_[index];
  if (segment.sealed) return;
  SegmentTrailer trailer;
  trailer.records = static_cast<std::uint32_t>(open_.size());
  trailer.sequence = segment.sequence;
  trailer.used = segment.used;
  seal(trailer, salt());
  std::vector<std::byte> tail(tail_bytes(open_.size(), align()) - align() + sizeof(SegmentTrailer));
  for (std::size_t i = 0; i < open_.size(); ++i)
    nvme::write_wire(std::span(tail).subspan(i * sizeof(TableEntry)), open_[i]);
  nvme::write_wire(std::span(tail).last(sizeof(SegmentTrailer)), trailer);
  if (!file_.write(at(index, table_offset(trailer.records)), tail)) {
    log_event(Level::error, "segment_not_sealed", {{"segment", index}});
    return;
  }
  segment.records = trailer.records;
  segment.sealed = true;
}

bool FileStore::begin_segment(std::uint32_t index) {
  SegmentHeader header;
  header.sequence = last_sequence_ + 1;
  if (!in_use_.empty()) {
    header.previous_sequence = segments_[in_use_.back()].sequence;
    header.previous_used = segments_[in_use_.back()].used;
  }
  seal(header, salt());
  if (!file_.write(at(index, 0), nvme::wire_bytes(header))) return false;
  std::erase(free_, index);
  in_use_.push_back(index);
  open_.clear();
  const std::lock_guard lock(mutex_);
  segments_[index] = {.sequence = ++last_sequence_, .used = align(), .last_crc = header.crc};
  return true;
}

// Drops the oldest segment's pairs, but for those that move to the newest: pairs retrieved since they were
// written, as often as they have chances left, and all of them while live pairs fill less than half of the
// file. Then it is replaced and removed pairs that take the space, and dropping live ones would be no
// eviction but a loss.
bool FileStore::release_oldest(bool moving) {
  const auto index = in_use_.front();
  if (index == in_use_.back()) return false;
  const bool sparse = space_ < segments_.size() * segment_bytes() / 2;
  for (const auto& record : list_records(index)) {
    if (moving && moved(record, index, sparse)) continue;
    const std::lock_guard lock(mutex_);
    const auto* const entry = index_.find(key_of(record));
    if (entry == nullptr || entry->segment != index || entry->unit != record.unit) continue;
    forget(*entry);
    ++evictions_;
  }
  purge(index);
  const std::array<std::byte, sizeof(SegmentHeader)> blank{};
  if (!file_.write(at(index, 0), blank)) return false;
  in_use_.pop_front();
  free_.push_back(index);
  const std::lock_guard lock(mutex_);
  segments_[index] = {};
  return true;
}

// Whether the pair of this record has a right to stay and found a place in the newest segment.
bool FileStore::moved(const TableEntry& record, std::uint32_t segment, bool sparse) {
  const auto place = place_of(key_of(record));
  if (!place || place->entry.segment != segment || place->entry.unit != record.unit) return false;
  const auto chances = place->entry.chances;
  if (chances == 0 && !sparse) return false;
  const auto bytes = record_bytes(record.value_bytes, align());
  if (!fits(bytes)) {
    if (spare_ < 2 || free_.empty()) return false;
    seal_newest();
    if (!begin_segment(free_.front())) return false;
  }
  Value value;
  if (!read_value(*place, value)) return false;
  const auto left = static_cast<std::uint8_t>(chances > 0 ? chances - 1 : 0);
  if (!append(RecordKind::value, place->entry.key, value.view(), left)) return false;
  const std::lock_guard lock(mutex_);
  ++moves_;
  return true;
}

// Pairs that the list of a damaged segment did not tell.
void FileStore::purge(std::uint32_t segment) {
  const std::lock_guard lock(mutex_);
  if (segments_[segment].live == 0) return;
  std::vector<nvme::KvKey> left;
  index_.walk({}, [&](const IndexEntry& entry) {
    if (entry.segment == segment) left.push_back(entry.key);
    return true;
  });
  for (const auto& key : left) {
    forget(*index_.find(key));
    ++evictions_;
  }
}

// With the lock held. `entry` is of the index and gone afterwards.
void FileStore::forget(const IndexEntry& entry) noexcept {
  bytes_ -= entry.value_bytes;
  space_ -= pair_space(entry.value_bytes);
  --segments_[entry.segment].live;
  index_.erase(nvme::KvKey(entry.key));
}

}  // namespace akv::softcard
