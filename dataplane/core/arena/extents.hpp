// Free and used page ranges of one memory region: best fit, neighbours that are free are one range.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace akv::arena {

// Counts in pages; not thread-safe.
class Extents {
 public:
  explicit Extents(std::uint32_t pages);

  // First page of a range of `pages` (>= 1); nothing when no free range is as long.
  [[nodiscard]] std::optional<std::uint32_t> take(std::uint32_t pages);
  // Gives back exactly what take() gave; the caller keeps account of that.
  void give_back(std::uint32_t first, std::uint32_t pages);

  [[nodiscard]] std::uint32_t free_pages() const noexcept { return free_pages_; }
  // Calls `visit` with first page and pages of each free range, in their order.
  template <typename Visit>
  void for_each_free(Visit visit) const {
    for (const auto& [first, pages] : by_place_)
      visit(first, pages);
  }
  // Number of free ranges; 1 when everything is free.
  [[nodiscard]] std::size_t free_ranges() const noexcept { return by_place_.size(); }

 private:
  using ByPlace = std::map<std::uint32_t, std::uint32_t>;

  void insert(std::uint32_t first, std::uint32_t pages);
  void erase(ByPlace::iterator range);

  ByPlace by_place_;                                           // first page -> pages
  std::set<std::pair<std::uint32_t, std::uint32_t>> by_size_;  // (pages, first page)
  std::uint32_t free_pages_;
};

}  // namespace akv::arena
