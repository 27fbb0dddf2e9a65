// Key-value pairs in a file that survives the process, even when it is killed: appended to segments, verified
// on every read, evicted a segment at a time.
#pragma once

#include <atomic>
#include <bit>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "softcard/card_file.hpp"
#include "softcard/key_index.hpp"
#include "softcard/store.hpp"

namespace akv::softcard {

// Of events that a failing medium makes without end: the 1st, 2nd, 4th, 8th ... are told. Any thread may
// call.
class Tally {
 public:
  // How many there were with this one, where it is to be told; else 0.
  [[nodiscard]] std::uint64_t count() noexcept {
    const std::uint64_t times = times_.fetch_add(1, std::memory_order_relaxed) + 1;
    return std::has_single_bit(times) ? times : 0;
  }

 private:
  std::atomic<std::uint64_t> times_{0};
};

// One of several stores that are done together.
struct PutRequest {
  nvme::KvKey key;
  Value value;
  std::uint8_t options{0};
  nvme::Status status{nvme::kInternalError};  // the answer
};

// get(), find(), walk() and stats() from any thread; put(), put_all(), remove(), settle() and flush() from
// one at a time.
class FileStore final : public Store {
 public:
  // Recovers what the file holds. Throws as CardFile does.
  explicit FileStore(const CardFileSpec& spec);

  [[nodiscard]] std::uint32_t max_value_bytes() const noexcept override;
  [[nodiscard]] std::optional<std::uint32_t> find(const nvme::KvKey& key) const override;
  [[nodiscard]] nvme::Status put(const nvme::KvKey& key, Value value, std::uint8_t options = 0) override;
  // As put() for each in turn; what lies side by side in the file is written at once.
  void put_all(std::span<PutRequest> puts);
  [[nodiscard]] nvme::Status get(const nvme::KvKey& key, Value& value) override;
  [[nodiscard]] nvme::Status remove(const nvme::KvKey& key) override;
  void walk(const nvme::KvKey& start, const std::function<bool(const nvme::KvKey&)>& visit) const override;
  [[nodiscard]] StoreStats stats() const noexcept override;
  void flush() override;

  // Of the medium, recovery included.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return file_.bytes_read(); }

  // Marks the records that get() could not read as outdated.
  void settle();

 private:
  struct Segment {
    std::uint64_t sequence{0};  // 0: free
    std::uint64_t used{0};      // bytes from the segment's start
    std::uint32_t last_crc{0};  // of the newest header in it
    std::uint32_t records{0};   // in its table, once it is sealed
    std::uint32_t live{0};      // pairs that lie in it
    bool sealed{false};
  };
  // A record as it lies in the file.
  struct Found {
    RecordHeader record;  // with its checksum before it was marked
    bool outdated{false};
  };
  struct Recovered {
    SegmentHeader header;
    std::uint32_t index{0};
  };
  // A record for the newest segment, and its line in the table.
  struct NewRecord {
    RecordHeader header;
    TableEntry entry;
  };
  // One that is not written yet, though its place is taken.
  struct Staged {
    NewRecord record;
    PutRequest* put{nullptr};
  };
  // Where a record lies, told apart from others that lay there before.
  struct Place {
    IndexEntry entry;
    std::uint64_t sequence{0};
  };

  // Layout.
  [[nodiscard]] std::uint64_t align() const noexcept { return file_.superblock().align; }
  [[nodiscard]] std::uint64_t segment_bytes() const noexcept { return file_.superblock().segment_bytes; }
  [[nodiscard]] std::uint64_t salt() const noexcept { return file_.superblock().salt; }
  [[nodiscard]] std::uint64_t at(std::uint32_t segment, std::uint64_t offset) const noexcept {
    return file_.segment_offset(segment) + offset;
  }
  // Of the file, that a pair takes: its record, and its line in the table.
  [[nodiscard]] std::uint64_t pair_space(std::uint32_t value_bytes) const noexcept {
    return record_bytes(value_bytes, align()) + sizeof(TableEntry);
  }
  [[nodiscard]] std::uint64_t table_offset(std::uint32_t records) const noexcept {
    return segment_bytes() - tail_bytes(records, align());
  }

  // Recovery (file_recovery.cpp).
  void recover();
  [[nodiscard]] std::vector<Recovered> find_segments();
  [[nodiscard]] bool replay_table(std::uint32_t segment);
  void replay_segment(const std::vector<Recovered>& found, std::size_t number);
  void replay(std::uint32_t segment, std::uint64_t end, bool newest);
  void replay_record(const Found& found, std::uint32_t segment, std::uint64_t offset, bool newest);
  [[nodiscard]] std::optional<std::uint64_t> find_record(std::uint32_t segment, std::uint64_t from,
                                                         std::uint64_t end) const;
  [[nodiscard]] bool value_verifies(const RecordHeader& record, std::uint32_t segment,
                                    std::uint64_t offset) const;

  // Reading (file_read.cpp).
  [[nodiscard]] std::optional<Found> decode(std::span<const std::byte> raw, std::uint64_t sequence,
                                            std::uint64_t offset) const;
  [[nodiscard]] std::optional<Found> read_record(std::uint32_t segment, std::uint64_t sequence,
                                                 std::uint64_t offset) const;
  [[nodiscard]] std::optional<Found> read_whole(const Place& place, Value& value) const;
  [[nodiscard]] bool read_value(const Place& place, Value& value) const;
  [[nodiscard]] std::optional<std::vector<TableEntry>> read_table(std::uint32_t segment) const;
  [[nodiscard]] std::vector<TableEntry> list_records(std::uint32_t segment) const;
  [[nodiscard]] std::optional<Place> place_of(const nvme::KvKey& key) const;

  // Writing several at once (file_batch.cpp).
  [[nodiscard]] bool stages(PutRequest& put);
  void commit();
  void write_again(std::span<const Staged> staged);

  // Writing (file_store.cpp).
  void tell_refused_write(int error);
  [[nodiscard]] NewRecord make_record(RecordKind kind, const nvme::KvKey& key,
                                      std::span<const std::byte> value) const;
  void take_place(const NewRecord& record);
  [[nodiscard]] nvme::Status write_pair(RecordKind kind, const nvme::KvKey& key,
                                        std::span<const std::byte> value);
  [[nodiscard]] bool append(RecordKind kind, const nvme::KvKey& key, std::span<const std::byte> value,
                            std::uint8_t chances);
  void apply(const TableEntry& entry, std::uint32_t segment, std::uint8_t chances);
  [[nodiscard]] bool fits(std::uint64_t bytes) const noexcept;
  [[nodiscard]] bool make_room(std::uint64_t bytes);
  [[nodiscard]] bool has_room_for_key() const;
  [[nodiscard]] bool make_room_for_key();
  [[nodiscard]] bool next_segment(int& moving_rounds);
  void seal_newest();
  [[nodiscard]] bool begin_segment(std::uint32_t segment);
  [[nodiscard]] bool release_oldest(bool moving);
  [[nodiscard]] bool moved(const TableEntry& record, std::uint32_t segment, bool sparse);
  void purge(std::uint32_t segment);
  [[nodiscard]] std::optional<Place> first_unreadable() const;
  void mark_outdated(const Place& place);
  [[nodiscard]] bool mark_in_table(const Place& place);
  void forget(const IndexEntry& entry) noexcept;

  CardFile file_;
  const std::uint64_t max_keys_;
  std::deque<std::uint32_t> in_use_;  // oldest first; the last is appended to
  std::deque<std::uint32_t> free_;
  std::size_t spare_{1};          // segments that stay free between two puts
  std::vector<TableEntry> open_;  // records of the newest segment
  std::vector<Staged> staged_;    // the last ones of them
  std::uint64_t last_sequence_{0};
  std::uint64_t gaps_{0};  // unreadable stretches that recovery stepped over

  Tally refused_writes_;
  Tally unmarked_records_;
  Tally corrupt_records_;

  mutable std::mutex mutex_;  // of what follows
  std::vector<Segment> segments_;
  KeyIndex index_;
  std::deque<Place> unreadable_;
  std::uint64_t bytes_{0};
  std::uint64_t space_{0};  // of the file, that they take
  std::uint64_t evictions_{0};
  std::uint64_t moves_{0};
  std::uint64_t corrupt_{0};
};

}  // namespace akv::softcard
