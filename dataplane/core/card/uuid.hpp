// UUIDs as text and as the 16 bytes of Connect data and namespace descriptors.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "nvme/connect.hpp"

namespace akv::card {

// "8-4-4-4-12" hexadecimal digits of either case; nothing for other text.
[[nodiscard]] std::optional<nvme::Uuid> parse_uuid(std::string_view text) noexcept;
[[nodiscard]] std::string format_uuid(const nvme::Uuid& uuid);

}  // namespace akv::card
