#include "arena/extents.hpp"

#include <iterator>

namespace akv::arena {

Extents::Extents(std::uint32_t pages) : free_pages_(0) {
  if (pages != 0) insert(0, pages);
}

std::optional<std::uint32_t> Extents::take(std::uint32_t pages) {
  const auto fit = by_size_.lower_bound({pages, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const auto [length, first] = *fit;
  erase(by_place_.find(first));
  if (length > pages) insert(first + pages, length - pages);
  return first;
}

void Extents::give_back(std::uint32_t first, std::uint32_t pages) {
  const auto next = by_place_.lower_bound(first);
  if (next != by_place_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == first) {
      first = before->first;
      pages += before->second;
      erase(before);
    }
  }
  if (next != by_place_.end() && first + pages == next->first) {
    pages += next->second;
    erase(next);
  }
  insert(first, pages);
}

void Extents::insert(std::uint32_t first, std::uint32_t pages) {
  by_place_.emplace(first, pages);
  by_size_.emplace(pages, first);
  free_pages_ += pages;
}

void Extents::erase(ByPlace::iterator range) {
  free_pages_ -= range->second;
  by_size_.erase({range->second, range->first});
  by_place_.erase(range);
}

}  // namespace akv::arena
