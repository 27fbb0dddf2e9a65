// Values of the command line: each throws std::invalid_argument that says what is wrong and what would be
// right.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "nvme/connect.hpp"

namespace akv::softcard {

// The value of `option`: "1073741824", "512M", "4G": bytes, with K, M, G, T for powers of 1,024.
[[nodiscard]] std::uint64_t parse_bytes(std::string_view option, std::string_view text);
// 8-4-4-4-12 hexadecimal digits.
[[nodiscard]] nvme::Uuid parse_uuid(std::string_view text);
[[nodiscard]] std::string uuid_text(const nvme::Uuid& uuid);
// The same for the same card always: an identity must not change at a restart.
[[nodiscard]] nvme::Uuid derive_uuid(std::string_view nqn, std::string_view serial);

// Letters, digits, '.', '_' and '-', not starting with '.': names files too.
void check_card_id(std::string_view id);     // 1 to 32 characters
void check_serial(std::string_view serial);  // 1 to 20 characters (NVMe Base 2.0, 5.17.2.1, SN)
void check_nqn(std::string_view nqn);        // "nqn." and at most 223 bytes

}  // namespace akv::softcard
