// The directory in which the cards of a host are found: for each card a record, a lock that is held while the
// card lives, and a control socket. A lock, and not a process id, proves that a card is gone.
#pragma once

#include <filesystem>
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
};

// All records, sorted by id. A missing directory has none. Throws std::runtime_error that names a record it
// can't read.
[[nodiscard]] std::vector<CardRecord> list_cards(const std::filesystem::path& directory);

// The card's place in the directory, held as long as the object lives.
class CardSeat {
 public:
  // Makes the directory (0700) where needed, takes the card's lock, and removes records of dead cards with
  // the same serial or id. Throws std::runtime_error when a living card has one of them.
  CardSeat(std::filesystem::path directory, const std::string& id, const std::string& serial);

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
