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
  const auto direct = with_digest_ ? std::min(data_.size(), kDigestPiece) : data_.size();
  const bool whole = direct == data_.size();
  std::array<iovec, 2> vectors{iovec{data_.data(), direct},
                               iovec{buffer_.data() + end_, whole ? buffer_.size() - end_ : 0}};
  const auto wanted = vectors[0].iov_len + vectors[1].iov_len;
  const auto got = ::readv(socket, vectors.data(), 2);
  if (got == 0) return Read::end;
  if (got < 0) {
    const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    return later ? Read::nothing : Read::failed;
  }
  const auto bytes = static_cast<std::size_t>(got);
  const auto to_data = std::min(bytes, direct);
  take_data(to_data);
  end_ += bytes - to_data;
  return bytes == wanted ? Read::some : Read::all_there_was;
}

void Receiver::expect_data(std::span<std::byte> to, bool digest) noexcept {
  expecting_ = true;
  with_digest_ = digest;
  data_ = to;
  data_bytes_ = to.size();
  crc_ = Crc32c();
  digest_got_ = 0;
}

void Receiver::take_data(std::size_t bytes) noexcept {
  if (with_digest_) crc_.update(data_.first(bytes));
  data_ = data_.subspan(bytes);
}

bool Receiver::advance_data() noexcept {
  const auto bytes = std::min(data_.size(), end_ - begin_);
  if (bytes > 0) std::memcpy(data_.data(), buffer_.data() + begin_, bytes);
  take_data(bytes);
  consume(bytes);
  if (!data_.empty()) return false;
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
