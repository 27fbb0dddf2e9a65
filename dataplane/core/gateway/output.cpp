#include "gateway/output.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace akv::gateway {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 10U;
constexpr std::size_t kVectors = 64;

}  // namespace

std::span<std::byte> Output::grow(std::size_t size) {
  const bool fresh =
      chunks_.empty() || chunks_.back().owner != nullptr || chunks_.back().own.size() + size > kChunkBytes;
  // A chunk that waits for its descriptors' bytes is empty and is filled by the first call.
  const bool waits = !chunks_.empty() && !chunks_.back().descriptors.empty() && chunks_.back().own.empty();
  if (fresh && !waits) {
    chunks_.emplace_back();
    chunks_.back().own = std::exchange(spare_, {});
  }
  auto& own = chunks_.back().own;
  const std::size_t start = own.size();
  own.resize(start + size);
  pending_ += size;
  return std::span(own).subspan(start);
}

void Output::append_shared(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  if (bytes.empty()) return;
  chunks_.emplace_back();
  chunks_.back().shared = bytes;
  chunks_.back().owner = std::move(owner);
  pending_ += bytes.size();
}

void Output::hold(std::size_t bytes) noexcept {
  chunks_.back().held += bytes;
  held_ += bytes;
}

void Output::attach_descriptors(std::vector<int> descriptors, std::shared_ptr<const void> owner) {
  chunks_.emplace_back();
  chunks_.back().descriptors = std::move(descriptors);
  chunks_.back().owner = std::move(owner);
}

Output::Flush Output::flush(int socket) noexcept {
  while (pending_ != 0) {
    const long written = write_some(socket);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Flush::blocked : Flush::broken;
    consume(static_cast<std::size_t>(written));
  }
  return Flush::done;
}

long Output::write_some(int socket) noexcept {
  std::array<iovec, kVectors> vectors;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = vectors.data();
  std::size_t offset = front_offset_;
  for (const Chunk& chunk : chunks_) {
    const bool first = message.msg_iovlen == 0;
    const bool carries = !chunk.descriptors.empty() && offset == 0;
    if (message.msg_iovlen == kVectors || (carries && !first)) break;
    if (carries) {
      const std::size_t size = chunk.descriptors.size() * sizeof(int);
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(size);
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(size);
      std::memcpy(CMSG_DATA(header), chunk.descriptors.data(), size);
    }
    const auto bytes = chunk.bytes().subspan(std::exchange(offset, 0));
    vectors[message.msg_iovlen++] = {.iov_base = const_cast<std::byte*>(bytes.data()),
                                     .iov_len = bytes.size()};
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Output::consume(std::size_t count) noexcept {
  pending_ -= count;
  front_offset_ += count;
  while (!chunks_.empty() && front_offset_ >= chunks_.front().bytes().size()) {
    front_offset_ -= chunks_.front().bytes().size();
    held_ -= chunks_.front().held;
    auto& own = chunks_.front().own;
    if (own.capacity() != 0 && own.capacity() <= kChunkBytes) {
      own.clear();
      spare_ = std::move(own);
    }
    chunks_.pop_front();
  }
}

}  // namespace akv::gateway
