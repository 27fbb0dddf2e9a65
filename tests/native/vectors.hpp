// Reads the JSON files of tests/vectors.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "paths.hpp"

namespace akv::test {

inline nlohmann::json read_vectors(const std::string& name) {
  std::ifstream file(std::string(kVectorsDirectory) + "/" + name);
  if (!file) throw std::runtime_error("no vector file " + name);
  return nlohmann::json::parse(file);
}

inline std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

template <typename Array>
Array array_from_hex(const std::string& text) {
  const auto bytes = from_hex(text);
  Array array{};
  if (bytes.size() != array.size()) throw std::runtime_error("hex of the wrong length: " + text);
  std::ranges::copy(bytes, array.begin());
  return array;
}

inline std::uint64_t number_from_hex(const std::string& text) {
  return std::stoull(text, nullptr, 16);
}

}  // namespace akv::test
