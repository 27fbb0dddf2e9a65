// One card's life in this process: from its place in the state directory to a clean stop.
#pragma once

#include <filesystem>

#include "softcard/address.hpp"
#include "softcard/config.hpp"

namespace akv::softcard {

struct ServeOptions {
  CardConfig card;
  TcpEndpoint listen;
  std::filesystem::path state_dir;
};

// Serves until SIGTERM, SIGINT or the control command "stop", then puts a file store on its medium. Logs
// "ready" with the address when hosts may come, and "stopped" at the end. Throws std::runtime_error
// (std::system_error among them) when the card can't start.
void serve_card(const ServeOptions& options);

}  // namespace akv::softcard
