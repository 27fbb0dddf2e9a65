// The commands of one NVMe/TCP queue pair that are outstanding, by command id.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fabric/iovec_list.hpp"
#include "fabric/queue_pair.hpp"
#include "fabric/tcp_sender.hpp"

namespace akv::fabric {

// What one R2T asked for.
struct Grant {
  std::uint32_t end{0};  // where it ends in the command's data; it begins where the one before it ends
  std::uint16_t ttag{0};
};

// The R2Ts of a command that are not answered in full, in the order in which they came and are answered (TCP
// 3.6.2.10; MAXR2T bounds their number).
class Grants {
 public:
  static constexpr std::uint32_t kMost = 4;

  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  [[nodiscard]] const Grant& front() const noexcept { return ring_[first_]; }
  // Not to be called with kMost of them.
  void push(const Grant& grant) noexcept { ring_[(first_ + count_++) % kMost] = grant; }
  void pop() noexcept {
    first_ = (first_ + 1) % kMost;
    --count_;
  }
  void clear() noexcept { count_ = 0; }

 private:
  std::array<Grant, kMost> ring_{};
  std::uint32_t first_{0};
  std::uint32_t count_{0};
};

// One outstanding command. Data moves in order in both directions, as the transport demands, so counters
// tell all there is to know.
struct CommandSlot {
  bool active{false};
  std::uint16_t cid{0};
  std::uint32_t tag{0};
  Direction direction{Direction::none};
  IovecList data;
  bool in_capsule{false};
  bool capsule_sent{false};
  bool queued{false};      // `out` is in the sender's line
  bool data_ended{false};  // C2HData with LAST came
  bool held{false};        // the response came while `out` was in line
  bool wrong_digest{false};
  std::uint32_t received{0};
  std::uint32_t granted{0};  // bytes that R2Ts asked for so far
  std::uint32_t pushed{0};   // of these, bytes put into H2CData PDUs
  Grants grants{};
  Response response{};
  OutgoingPdu out{};
};

// A command id is an index below 1,024 and a 6-bit generation, so that a late or invented id of a slot's
// former command is told from its present one. At most 1,023 slots: command id 0xFFFF is not to be used.
class SlotTable {
 public:
  static constexpr std::uint32_t kMaxSlots = 1024;

  explicit SlotTable(std::uint32_t slots) : slots_(slots) {
    for (std::uint32_t i = slots; i > 0; --i) {
      free_.push_back(i - 1);
      slots_[i - 1].out.owner = i - 1;
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
  [[nodiscard]] bool full() const noexcept { return free_.empty(); }
  [[nodiscard]] CommandSlot& operator[](std::uint32_t index) noexcept { return slots_[index]; }

  // A slot as of a new command; not to be called when full.
  [[nodiscard]] CommandSlot& take() noexcept {
    CommandSlot& slot = slots_[free_.back()];
    free_.pop_back();
    slot.active = true;
    slot.cid = static_cast<std::uint16_t>(((slot.cid + kMaxSlots) & ~(kMaxSlots - 1)) | slot.out.owner);
    slot.direction = Direction::none;
    slot.in_capsule = slot.capsule_sent = slot.queued = slot.data_ended = slot.held = slot.wrong_digest =
        false;
    slot.received = slot.granted = slot.pushed = 0;
    slot.grants.clear();
    return slot;
  }
  void release(CommandSlot& slot) noexcept {
    slot.active = false;
    slot.data.clear();
    free_.push_back(slot.out.owner);
  }
  // Null when no outstanding command has this id.
  [[nodiscard]] CommandSlot* find(std::uint16_t cid) noexcept {
    const std::uint32_t index = cid & (kMaxSlots - 1);
    if (index >= slots_.size() || !slots_[index].active || slots_[index].cid != cid) return nullptr;
    return &slots_[index];
  }
  // Null when no outstanding command has this tag.
  [[nodiscard]] const CommandSlot* find_tag(std::uint32_t tag) const noexcept {
    const auto found = std::ranges::find_if(
        slots_, [tag](const CommandSlot& slot) { return slot.active && slot.tag == tag; });
    return found == slots_.end() ? nullptr : &*found;
  }

 private:
  std::vector<CommandSlot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace akv::fabric
