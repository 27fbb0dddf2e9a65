#include "softcard/transfers.hpp"

#include <algorithm>
#include <utility>

namespace akv::softcard {

std::optional<std::uint16_t> TransferTable::start(std::uint16_t cid, const nvme::KvCommand& command) {
  Transfer transfer;
  transfer.cid = cid;
  transfer.command = command;
  if (waiting_.empty()) {
    if (const auto tag = place(transfer)) return tag;
  }
  waiting_.push_back(std::move(transfer));
  return std::nullopt;
}

std::optional<std::uint16_t> TransferTable::start_waiting() {
  if (waiting_.empty()) return std::nullopt;
  const auto tag = place(waiting_.front());
  if (tag) waiting_.pop_front();
  return tag;
}

std::optional<std::uint16_t> TransferTable::place(Transfer transfer) {
  if (!budget_.take(transfer.command.size, held_)) return std::nullopt;
  held_ += transfer.command.size;
  transfer.bytes = allocate_bytes(transfer.command.size);
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint16_t>(slots_.size()));
    slots_.emplace_back();
  }
  const auto tag = free_.back();
  free_.pop_back();
  slots_[tag] = std::move(transfer);
  ++active_;
  return tag;
}

Transfer* TransferTable::find(std::uint16_t tag) noexcept {
  if (tag >= slots_.size() || !slots_[tag]) return nullptr;
  return &*slots_[tag];
}

Transfer TransferTable::finish(std::uint16_t tag) {
  auto transfer = std::move(*slots_[tag]);
  slots_[tag].reset();
  free_.push_back(tag);
  --active_;
  return transfer;
}

void TransferTable::give_back(std::uint32_t bytes) {
  held_ -= bytes;
  if (bytes > 0) budget_.give_back(bytes);
}

bool TransferTable::cancel_waiting(std::uint16_t cid) {
  return std::erase_if(waiting_, [cid](const Transfer& transfer) { return transfer.cid == cid; }) > 0;
}

void TransferTable::clear() {
  for (std::size_t tag = 0; tag < slots_.size(); ++tag) {
    if (slots_[tag]) give_back(finish(static_cast<std::uint16_t>(tag)).command.size);
  }
  waiting_.clear();
}

bool TransferTable::uses(std::uint16_t cid) const noexcept {
  const auto same = [cid](const auto& transfer) { return transfer.cid == cid; };
  return std::any_of(slots_.begin(), slots_.end(), [&](const auto& slot) { return slot && same(*slot); }) ||
         std::any_of(waiting_.begin(), waiting_.end(), same);
}

bool TransferTable::overdue(TimePoint now) const noexcept {
  return active_ > 0 && std::any_of(slots_.begin(), slots_.end(), [now](const auto& slot) {
           return slot && slot->deadline && now > *slot->deadline;
         });
}

}  // namespace akv::softcard
