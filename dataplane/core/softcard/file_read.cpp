// The file store's reading side: records, tables and values, each verified.
#include <array>
#include <utility>

#include "base/events.hpp"
#include "softcard/file_store.hpp"

namespace akv::softcard {
namespace {

bool plausible(const RecordHeader& record, const Superblock& layout, std::uint64_t sequence,
               std::uint64_t offset) {
  return record.magic == kRecordMagic && record.sequence == sequence && record.key_length >= 1 &&
         record.key_length <= nvme::kKvKeyMaxBytes && record.value_bytes <= layout.max_value_bytes &&
         offset + record_bytes(record.value_bytes, layout.align) <= layout.segment_bytes &&
         (record.kind == RecordKind::value || record.kind == RecordKind::removed);
}

bool plausible(const TableEntry& entry, const Superblock& layout) {
  return entry.key_length >= 1 && entry.key_length <= nvme::kKvKeyMaxBytes &&
         entry.value_bytes <= layout.max_value_bytes &&
         entry.unit * kRecordAlign + record_bytes(entry.value_bytes, layout.align) <= layout.segment_bytes &&
         (entry.kind == RecordKind::value || entry.kind == RecordKind::removed);
}

}  // namespace

std::optional<FileStore::Found> FileStore::decode(std::span<const std::byte> raw, std::uint64_t sequence,
                                                  std::uint64_t offset) const {
  Found found{.record = nvme::read_wire<RecordHeader>(raw.first<sizeof(RecordHeader)>())};
  if (!plausible(found.record, file_.superblock(), sequence, offset)) return std::nullopt;
  const std::uint32_t crc = header_crc(found.record, salt());
  found.outdated = found.record.crc == (crc ^ kOutdatedMark);
  if (found.record.crc != crc && !found.outdated) return std::nullopt;
  found.record.crc = crc;
  return found;
}

std::optional<FileStore::Found> FileStore::read_record(std::uint32_t segment, std::uint64_t sequence,
                                                       std::uint64_t offset) const {
  if (offset + sizeof(RecordHeader) > segment_bytes()) return std::nullopt;
  std::array<std::byte, sizeof(RecordHeader)> raw{};
  if (!file_.read(at(segment, offset), raw)) return std::nullopt;
  return decode(raw, sequence, offset);
}

// Header and value by one read; the value stays where it was read to. Nothing where they do not verify.
std::optional<FileStore::Found> FileStore::read_whole(const Place& place, Value& value) const {
  const auto& entry = place.entry;
  const auto offset = std::uint64_t{entry.unit} * kRecordAlign;
  const auto bytes = sizeof(RecordHeader) + entry.value_bytes;
  const auto blocks = file_.read_shared(at(entry.segment, offset), bytes);
  if (!blocks) return std::nullopt;
  const auto found = decode({blocks.get(), sizeof(RecordHeader)}, place.sequence, offset);
  if (!found || found->record.key != entry.key.bytes || found->record.key_length != entry.key.length ||
      found->record.value_bytes != entry.value_bytes) {
    return std::nullopt;
  }
  const std::span<const std::byte> body(blocks.get() + sizeof(RecordHeader), entry.value_bytes);
  if (crc32c(body) != found->record.value_crc) return std::nullopt;
  value = {.bytes = std::shared_ptr<const std::byte[]>(blocks, body.data()),
           .size = entry.value_bytes,
           .memory = blocks_memory(bytes)};
  return found;
}

// A record that is marked has no value to give, even where the index took it from a table that the mark did
// not reach.
bool FileStore::read_value(const Place& place, Value& value) const {
  const auto found = read_whole(place, value);
  return found && !found->outdated;
}

// The table of a sealed segment; nullopt where any of it can't be trusted.
std::optional<std::vector<TableEntry>> FileStore::read_table(std::uint32_t segment) const {
  const auto& known = segments_[segment];
  const auto bytes = known.records * sizeof(TableEntry);
  if (bytes == 0) return std::vector<TableEntry>{};
  const auto raw = file_.read_shared(at(segment, table_offset(known.records)), bytes);
  if (!raw) return std::nullopt;
  std::vector<TableEntry> table;
  table.reserve(known.records);
  for (std::size_t i = 0; i < known.records; ++i) {
    const std::span<const std::byte> one(raw.get() + i * sizeof(TableEntry), sizeof(TableEntry));
    table.push_back(nvme::read_wire<TableEntry>(one.first<sizeof(TableEntry)>()));
    const auto& entry = table.back();
    const auto crc = header_crc(entry, salt() + known.sequence);
    const bool known_mark = entry.crc == crc || entry.crc == (crc ^ kOutdatedMark);
    if (!known_mark || !plausible(entry, file_.superblock())) return std::nullopt;
  }
  return table;
}

// What lies in a full segment: by its table, or where that is lost by the records themselves.
std::vector<TableEntry> FileStore::list_records(std::uint32_t segment) const {
  if (segments_[segment].sealed) {
    if (auto table = read_table(segment)) return std::move(*table);
    log_event(Level::error, "table_unreadable", {{"segment", segment}});
  }
  std::vector<TableEntry> all;
  const auto end = segments_[segment].used;
  for (auto offset = align(); offset < end;) {
    const auto found = read_record(segment, segments_[segment].sequence, offset);
    if (!found) {
      const auto next = find_record(segment, offset + align(), end);
      if (!next) break;
      offset = *next;
      continue;
    }
    all.push_back({.key = found->record.key,
                   .unit = static_cast<std::uint32_t>(offset / kRecordAlign),
                   .value_bytes = found->record.value_bytes,
                   .key_length = found->record.key_length,
                   .kind = found->record.kind});
    offset += record_bytes(found->record.value_bytes, align());
  }
  return all;
}

std::optional<FileStore::Place> FileStore::place_of(const nvme::KvKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto* const entry = index_.find(key);
  if (entry == nullptr) return std::nullopt;
  return Place{*entry, segments_[entry->segment].sequence};
}

// The pair may move or go while it is read: what was read counts only if it verifies, and a failure only if
// the pair is still where it was.
nvme::Status FileStore::get(const nvme::KvKey& key, Value& value) {
  while (const auto place = place_of(key)) {
    const bool read = read_value(*place, value);
    const std::lock_guard lock(mutex_);
    auto* const entry = index_.find(key);
    const bool still = entry != nullptr && entry->same_place(place->entry) &&
                       segments_[entry->segment].sequence == place->sequence;
    if (read) {
      if (still && entry->chances < kMaxChances) ++entry->chances;
      return nvme::kSuccess;
    }
    if (!still) continue;
    if (const auto times = corrupt_records_.count(); times != 0) {
      log_event(Level::error, "record_corrupt",
                {{"segment", entry->segment},
                 {"offset", std::uint64_t{entry->unit} * kRecordAlign},
                 {"times", times}});
    }
    unreadable_.push_back(*place);
    forget(*entry);
    ++corrupt_;
    return nvme::kKvUnrecoveredError;
  }
  return nvme::kKvKeyDoesNotExist;
}

}  // namespace akv::softcard
