#include "softcard/receiver.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.hpp"

namespace akv::softcard {
namespace {

// Data checked by a digest is read in pieces that are still in the cache when their CRC is computed.
constexpr std::size_t kDigestPiece = std::size_t{256} << 10U;

}  // namespace

Receiver::Read Receiver::read(int socket) noexcept {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const auto wished = to_ == nullptr ? 0 : missing_;
  const auto direct = with_digest_ ? std::min(wished, kDigestPiece) : wished;
  std::array<iovec, 2> vectors{iovec{to_, direct},
                               iovec{buffer_.data() + end_, direct == wished ? buffer_.size() - end_ : 0}};
  const auto wanted = vectors[0].iov_len + vectors[1].iov_len;
  const auto got = ::readv(socket, vectors.data(), 2);
  if (got == 0) return Read::end;
  if (got < 0) {
    const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    return later ? Read::nothing : Read::failed;
  }
  const auto bytes = static_cast<std::size_t>(got);
  const auto to_data = std::min(bytes, direct);
  take_data({to_, to_data});
  end_ += bytes - to_data;
  return bytes == wanted ? Read::some : Read::all_there_was;
}

void Receiver::expect(std::byte* to, std::size_t bytes, bool digest) noexcept {
  expecting_ = true;
  with_digest_ = digest;
  to_ = to;
  missing_ = data_bytes_ = bytes;
  crc_ = Crc32c();
  digest_got_ = 0;
}

void Receiver::take_data(std::span<const std::byte> piece) noexcept {
  if (with_digest_) crc_.update(piece);
  missing_ -= piece.size();
  if (to_ != nullptr) to_ += piece.size();
}

bool Receiver::advance_data() noexcept {
  const auto there = buffered().first(std::min(missing_, end_ - begin_));
  if (to_ != nullptr && !there.empty()) std::memcpy(to_, there.data(), there.size());
  take_data(there);
  consume(there.size());
  if (missing_ > 0) return false;
  if (with_digest_) {
    const auto piece = std::min(nvme::kDigestBytes - digest_got_, end_ - begin_);
    std::memcpy(digest_.data() + digest_got_, buffer_.data() + begin_, piece);
    digest_got_ += piece;
    consume(piece);
    if (digest_got_ < nvme::kDigestBytes) return false;
  }
  expecting_ = false;
  return true;
}

nvme::DataDigest Receiver::digest() const noexcept {
  if (!with_digest_) return nvme::DataDigest::plain;
  return nvme::judge_data_digest(load_le<std::uint32_t>(digest_.data()), crc_, data_bytes_);
}

}  // namespace akv::softcard
