// Checks and texts of card specifications that every kind of card set shares.
#pragma once

#include <string>
#include <vector>

#include "card/card_set.hpp"

namespace akv::card {

// Throws std::invalid_argument that names the card and what is wrong: an empty or doubled serial, an NQN that
// is empty or over 223 bytes, no path. Addresses are checked by the transport.
void check_specs(const std::vector<CardSpec>& cards);

}  // namespace akv::card
