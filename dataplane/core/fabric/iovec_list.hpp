// A command's data buffer: a short list of vectors that is read and written by offset.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace akv::fabric {

inline constexpr std::size_t kMaxVectors = 8;

class IovecList {
 public:
  IovecList() noexcept = default;

  // False, and the list is empty, when there are too many vectors or 4 GiB and more.
  [[nodiscard]] bool assign(std::span<const iovec> vectors) noexcept {
    clear();
    if (vectors.size() > kMaxVectors) return false;
    std::uint64_t total = 0;
    for (const iovec& vector : vectors) {
      if (vector.iov_len > UINT32_MAX - total) return false;
      total += vector.iov_len;
    }
    std::ranges::copy(vectors, vectors_.begin());
    count_ = vectors.size();
    bytes_ = static_cast<std::uint32_t>(total);
    return true;
  }
  void clear() noexcept {
    count_ = 0;
    bytes_ = 0;
  }
  [[nodiscard]] std::uint32_t bytes() const noexcept { return bytes_; }

  // Writes the vectors of [offset, offset + length) to `out` as far as they fit; gives how many were written.
  // The range must lie inside the list.
  std::size_t slice(std::uint32_t offset, std::uint32_t length, std::span<iovec> out) const noexcept {
    std::size_t used = 0;
    for (std::size_t i = 0; i < count_ && length > 0 && used < out.size(); ++i) {
      const std::size_t size = vectors_[i].iov_len;
      if (offset >= size) {
        offset -= static_cast<std::uint32_t>(size);
        continue;
      }
      const std::size_t take = std::min<std::size_t>(size - offset, length);
      out[used++] = {static_cast<std::byte*>(vectors_[i].iov_base) + offset, take};
      length -= static_cast<std::uint32_t>(take);
      offset = 0;
    }
    return used;
  }

 private:
  std::array<iovec, kMaxVectors> vectors_{};
  std::size_t count_{0};
  std::uint32_t bytes_{0};
};

}  // namespace akv::fabric
