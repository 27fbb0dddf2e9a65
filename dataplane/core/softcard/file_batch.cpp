// Stores that wait for the file together go to it together: the file is a log, so their records lie side by
// side and one write takes them all, which keeps a medium of many channels busy where one record would not.
#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "base/events.hpp"
#include "softcard/file_store.hpp"

namespace akv::softcard {

void FileStore::put_all(std::span<PutRequest> puts) {
  if (puts.size() == 1) {
    puts[0].status = put(puts[0].key, puts[0].value, puts[0].options);
    return;
  }
  settle();
  try {
    staged_.reserve(CardFile::kMostPieces);
    for (PutRequest& request : puts) {
      if (stages(request)) continue;
      commit();
      request.status = put(request.key, request.value, request.options);
    }
    commit();
  } catch (const std::bad_alloc&) {
    // What has a place and was not written leaves a gap.
    open_.resize(open_.size() - std::exchange(staged_, {}).size());
    throw;
  }
}

// Gives the record its place in the newest segment where that takes no more than to write it.
bool FileStore::stages(PutRequest& put) {
  const auto status = check_store_options(find(put.key).has_value(), put.options);
  const auto same = [&put](const Staged& other) { return other.put->key == put.key; };
  const bool plain = status == nvme::kSuccess && put.value.size <= max_value_bytes() &&
                     fits(record_bytes(put.value.size, align())) && has_room_for_key() &&
                     staged_.size() < CardFile::kMostPieces && std::ranges::none_of(staged_, same);
  if (!plain) return false;
  const auto record = make_record(RecordKind::value, put.key, put.value.view());
  take_place(record);
  staged_.push_back({record, &put});
  return true;
}

// Writes what is staged; where the medium refuses that, each record is tried alone.
void FileStore::commit() {
  if (staged_.empty()) return;
  const auto index = in_use_.back();
  const auto begin = std::uint64_t{staged_.front().record.entry.unit} * kRecordAlign;
  std::array<CardFile::Piece, CardFile::kMostPieces> pieces;
  for (std::size_t i = 0; i < staged_.size(); ++i)
    pieces[i] = {nvme::wire_bytes(staged_[i].record.header), staged_[i].put->value.view()};
  const bool written = file_.write_all(at(index, begin), std::span(pieces).first(staged_.size()));
  if (!written) tell_refused_write(errno);
  const auto staged = std::exchange(staged_, {});
  if (!written) return write_again(staged);
  for (const auto& [record, request] : staged) {
    apply(record.entry, index, 0);
    request->status = nvme::kSuccess;
  }
}

// Some of the records may be in the file all the same, and must not be found behind newer ones: their space
// is given up, with the rest of the segment, whose table does not know them.
void FileStore::write_again(std::span<const Staged> staged) {
  open_.resize(open_.size() - staged.size());
  int moving_rounds = 0;
  if (!next_segment(moving_rounds)) log_event(Level::error, "segment_not_begun", {});
  for (const Staged& each : staged)
    each.put->status = put(each.put->key, each.put->value, each.put->options);
}

}  // namespace akv::softcard
