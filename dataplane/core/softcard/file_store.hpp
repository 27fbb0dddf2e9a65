// Key-value pairs in a file that survives the process, even when it is killed: appended to segments, verified
// on every read, evicted a segment at a time.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "softcard/card_file.hpp"
#include "softcard/store.hpp"

namespace akv::softcard {

class FileStore final : public Store {
 public:
  // Recovers what the file holds. Throws as CardFile does.
  explicit FileStore(const CardFileSpec& spec);

  [[nodiscard]] std::uint32_t max_value_bytes() const noexcept override;
  [[nodiscard]] bool contains(const nvme::KvKey& key) const override { return pairs_.contains(key); }
  [[nodiscard]] nvme::Status put(const nvme::KvKey& key, Value value) override;
  [[nodiscard]] nvme::Status get(const nvme::KvKey& key, Value& value) override;
  [[nodiscard]] nvme::Status remove(const nvme::KvKey& key) override;
  void walk(const nvme::KvKey& start, const std::function<bool(const nvme::KvKey&)>& visit) const override;
  [[nodiscard]] StoreStats stats() const noexcept override;
  void flush() override { file_.sync(); }

 private:
  struct Place {
    std::uint64_t offset{0};  // of the record, in the segment
    std::uint32_t segment{0};
    std::uint32_t value_bytes{0};
    std::uint32_t crc{0};  // of the record's header
    bool retrieved{false};
  };
  using Pairs = std::map<nvme::KvKey, Place, KeyOrder>;
  struct Written {
    nvme::KvKey key;
    std::uint64_t offset{0};
  };
  struct Segment {
    std::uint64_t sequence{0};  // 0: free
    std::uint64_t used{0};      // bytes from the segment's start
    std::uint32_t last_crc{0};  // of the newest header in it
    std::vector<Written> records;
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

  void recover();
  [[nodiscard]] std::vector<Recovered> find_segments();
  void replay(std::uint32_t segment, std::uint64_t end, bool newest);
  [[nodiscard]] std::optional<Found> decode(std::span<const std::byte, sizeof(RecordHeader)> raw,
                                            std::uint32_t segment, std::uint64_t offset) const;
  [[nodiscard]] std::optional<Found> read_record(std::uint32_t segment, std::uint64_t offset) const;
  [[nodiscard]] std::optional<std::uint64_t> find_record(std::uint32_t segment, std::uint64_t from,
                                                         std::uint64_t end) const;
  void apply(const RecordHeader& record, std::uint32_t segment, std::uint64_t offset);
  void mark_outdated(const Place& place);
  [[nodiscard]] bool value_verifies(const RecordHeader& record, std::uint32_t segment,
                                    std::uint64_t offset) const;

  [[nodiscard]] bool append(RecordKind kind, const nvme::KvKey& key, std::span<const std::byte> value);
  [[nodiscard]] bool make_room(std::uint64_t bytes);
  [[nodiscard]] bool begin_segment(std::uint32_t segment);
  [[nodiscard]] bool release_oldest();
  [[nodiscard]] bool reinsert(const nvme::KvKey& key, const Place& place);
  [[nodiscard]] bool read_value(const nvme::KvKey& key, const Place& place, Value& value) const;
  void forget(Pairs::iterator pair);

  CardFile file_;
  std::vector<Segment> segments_;
  std::deque<std::uint32_t> in_use_;  // oldest first; the last is appended to
  std::deque<std::uint32_t> free_;
  std::uint64_t last_sequence_{0};
  Pairs pairs_;
  std::uint64_t bytes_{0};
  std::uint64_t evictions_{0};
  std::uint64_t corrupt_{0};
  std::uint64_t gaps_{0};  // unreadable stretches that recovery stepped over
};

}  // namespace akv::softcard
