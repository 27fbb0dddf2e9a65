// Transport addresses: where a card listens.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace akv::fabric {

// A socket address from literals; names are never resolved on the data path.
class TcpAddress {
 public:
  // `traddr`: IPv4 or IPv6 literal without brackets, link-local with %scope; `trsvcid`: decimal
  // port 1..65535. Throws std::invalid_argument that names the bad part.
  TcpAddress(std::string_view traddr, std::string_view trsvcid);

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t size() const noexcept { return size_; }
  [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
  // "tcp://127.0.0.11:4420", "tcp://[fd00::1]:4420".
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  sockaddr_storage storage_{};
  socklen_t size_{0};
  std::string text_;
};

}  // namespace akv::fabric
