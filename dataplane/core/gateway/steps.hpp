// What each operation asks of a card, entry by entry, and what it makes of the answers. No queues here.
#pragma once

#include <cstdint>
#include <optional>

#include "card/io.hpp"
#include "gateway/batch.hpp"
#include "gateway/command.hpp"
#include "gateway/hot_blocks.hpp"
#include "gateway/outcomes.hpp"

namespace akv::gateway {

struct Work {
  std::uint32_t entry{0};
  std::uint16_t segment{0};
};

// The next thing to ask the card for; nothing when the batch only waits for answers.
[[nodiscard]] std::optional<Work> next_work(Batch& batch);

// Fills in op, key and data of a command whose batch, entry and segment are set. False when the entry got its
// status without a command. `max_value_bytes`: what the card takes as one value.
[[nodiscard]] bool prepare(Command& command, std::uint32_t max_value_bytes, Outcomes& outcomes);

// Before the data of a command is read. A value in one piece gets its envelope only now: its checksum is
// taken while the card answers its command.
void seal(Command& command);

// Takes what came of the answer so far, its first `bytes`: while they are in the CPU's cache it is cheap to
// copy them and to add them to their checksum. Concludes nothing.
void take_part(Command& command, std::uint32_t bytes, HotBlocks& hot);

// Takes the card's answer: gives the entry its status, or adds it to batch.more.
void conclude(Command& command, const card::IoResult& result, Outcomes& outcomes, HotBlocks& hot);

// Of single operations, for steps.cpp.
[[nodiscard]] bool prepare_put(Command& command, std::uint32_t max_value_bytes, Outcomes& outcomes);
void conclude_put(Command& command, const card::IoResult& result, Outcomes& outcomes);
[[nodiscard]] bool prepare_get(Command& command, std::uint32_t max_value_bytes, Outcomes& outcomes);
void take_part_of_get(Command& command, std::uint32_t bytes, HotBlocks& hot);
void conclude_get(Command& command, const card::IoResult& result, Outcomes& outcomes, HotBlocks& hot);
void prepare_exists(Command& command, std::uint32_t max_value_bytes);
void conclude_exists(Command& command, const card::IoResult& result, Outcomes& outcomes);
void prepare_remove(Command& command, std::uint32_t max_value_bytes);
void conclude_remove(Command& command, const card::IoResult& result, Outcomes& outcomes);

// What a command for a first segment may find under its key.
[[nodiscard]] kv::Expected expected_value(const Command& command, std::uint32_t value_size);
// The card key of the command's segment of a value that is cut like this.
[[nodiscard]] card::CardKey segment_key(const Command& command, const kv::Split& split);

}  // namespace akv::gateway
