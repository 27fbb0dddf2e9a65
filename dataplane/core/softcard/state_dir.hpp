// The directory in which the cards of a host are found: for each card a record, a lock that is held while the
// card lives, and a control socket. A lock, and not a process id, proves that a card is gone.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "softcard/address.hpp"

namespace akv::softcard {

struct CardRecord {
  std::string id;
  std::string serial;
  std::string nqn;
  std::string uuid;
  std::vector<TcpEndpoint> addresses;
  bool running{false};  // not in the file: what the lock says

  // A card that starts has no addresses yet.
  [[nodiscard]] bool serves() const noexcept { return running && !addresses.empty(); }
};

[[nodiscard]] nlohmann::ordered_json to_json(const CardRecord& record);

// A record that can't be read, and what to do about it.
struct LostRecord {
  std::string message;
  bool running{false};
};

struct CardList {
  std::vector<CardRecord> cards;  // sorted by id
  std::vector<LostRecord> lost;
};

// A missing directory has none.
[[nodiscard]] CardList list_cards(const std::filesystem::path& directory);

// The card's place in the directory, held as long as the object lives.
class CardSeat {
 public:
  // Makes the directory (0700) where needed, takes the card's lock, removes records of dead cards with the
  // same serial or id, and publishes `record`, by which other cards know that both are taken. Throws
  // std::runtime_error when a living card has one of them.
  CardSeat(std::filesystem::path directory, const CardRecord& record);

  // Replaces the record at once and in full.
  void publish(const CardRecord& record) const;
  // A listening Unix socket, mode 0600. Throws std::system_error.
  [[nodiscard]] UniqueFd listen_control() const;

 private:
  std::filesystem::path directory_;
  std::string serial_;
  UniqueFd lock_;
};

// Connected to the control socket of the living card `id`. Throws std::runtime_error when there is none.
[[nodiscard]] UniqueFd connect_control(const std::filesystem::path& directory, const std::string& id);
// Whether the card `id` runs now.
[[nodiscard]] bool card_runs(const std::filesystem::path& directory, const std::string& id);

}  // namespace akv::softcard
