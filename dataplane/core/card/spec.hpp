// Checks and texts of card specifications that every kind of card set shares.
#pragma once

#include <string>
#include <vector>

#include "card/card_set.hpp"

namespace akv::card {

// Throws std::invalid_argument that names the card and what is wrong: a serial that is not 1 to 20 bytes or
// is listed twice, an NQN that is not 1 to 223 bytes. Paths are not judged here: a card without a usable one
// is shown as such and disturbs no other card.
void check_specs(const std::vector<CardSpec>& cards);

}  // namespace akv::card
