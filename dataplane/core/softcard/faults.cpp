#include "softcard/faults.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/events.hpp"

namespace akv::softcard {
namespace {

constexpr std::uint32_t bit(FaultOp op) {
  return std::uint32_t{1} << static_cast<unsigned>(op);
}

constexpr std::uint32_t kFileOps = bit(FaultOp::file_read) | bit(FaultOp::file_write);
constexpr std::uint32_t kIoOps = bit(FaultOp::store) | bit(FaultOp::retrieve) | bit(FaultOp::exist) |
                                 bit(FaultOp::remove) | bit(FaultOp::list);
constexpr std::uint32_t kAdminOps = (bit(FaultOp::file_read) - 1) & ~kIoOps;
// Commands whose answers carry data.
constexpr std::uint32_t kDataOps =
    bit(FaultOp::retrieve) | bit(FaultOp::list) | bit(FaultOp::identify) | bit(FaultOp::log_page);

struct OpName {
  std::string_view name;
  std::uint32_t mask;
};
constexpr std::array kOps{
    OpName{"store", bit(FaultOp::store)},
    OpName{"retrieve", bit(FaultOp::retrieve)},
    OpName{"exist", bit(FaultOp::exist)},
    OpName{"delete", bit(FaultOp::remove)},
    OpName{"list", bit(FaultOp::list)},
    OpName{"io", kIoOps},
    OpName{"connect", bit(FaultOp::connect)},
    OpName{"property", bit(FaultOp::property)},
    OpName{"identify", bit(FaultOp::identify)},
    OpName{"set-features", bit(FaultOp::set_features)},
    OpName{"get-features", bit(FaultOp::get_features)},
    OpName{"keep-alive", bit(FaultOp::keep_alive)},
    OpName{"abort", bit(FaultOp::abort)},
    OpName{"async-event", bit(FaultOp::async_event)},
    OpName{"log-page", bit(FaultOp::log_page)},
    OpName{"admin", kAdminOps},
    OpName{"any", kIoOps | kAdminOps},
    OpName{"file-read", bit(FaultOp::file_read)},
    OpName{"file-write", bit(FaultOp::file_write)},
};

struct KindName {
  std::string_view name;
  FaultKind kind;
  std::uint32_t mask;  // the operations that it can strike
};
constexpr std::array kKinds{
    KindName{"delay", FaultKind::delay, kIoOps | kAdminOps | kFileOps},
    KindName{"hang", FaultKind::hang, kIoOps | kAdminOps | kFileOps},
    KindName{"error", FaultKind::error, kIoOps | kAdminOps | kFileOps},
    KindName{"corrupt", FaultKind::corrupt, kDataOps},
    KindName{"drop", FaultKind::drop, kIoOps | kAdminOps},
    KindName{"half-close", FaultKind::half_close, kIoOps | kAdminOps},
    KindName{"wrong-id", FaultKind::wrong_id, kIoOps | kAdminOps},
    KindName{"short", FaultKind::short_data, kDataOps},
    KindName{"bad-digest", FaultKind::bad_digest, kDataOps},
    KindName{"torn", FaultKind::torn, bit(FaultOp::file_write)},
};

template <typename Table>
std::string names(const Table& table) {
  std::string all;
  for (const auto& row : table)
    all.append(all.empty() ? "" : ", ").append(row.name);
  return all;
}

template <typename Table>
const auto& find_name(const Table& table, std::string_view what, std::string_view word) {
  const auto found = std::ranges::find(table, word, [](const auto& row) { return row.name; });
  if (found != table.end()) return *found;
  throw std::invalid_argument("fault: " + std::string(what) + " '" + std::string(word) + "' must be one of " +
                              names(table));
}

std::uint64_t number(std::string_view name, std::string_view text, std::uint64_t most) {
  const bool hex = text.starts_with("0x");
  const auto digits = hex ? text.substr(2) : text;
  std::uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, hex ? 16 : 10);
  if (error == std::errc{} && end == digits.data() + digits.size() && value <= most) return value;
  throw std::invalid_argument("fault: " + std::string(name) + " '" + std::string(text) +
                              "' must be a number of at most " + std::to_string(most));
}

int error_of(std::string_view text) {
  if (text == "EIO") return EIO;
  if (text == "ENOSPC") return ENOSPC;
  if (text == "ENOMEM") return ENOMEM;
  throw std::invalid_argument("fault: error '" + std::string(text) + "' must be EIO, ENOSPC or ENOMEM");
}

void set_parameter(Fault& fault, std::string_view word) {
  const auto equals = word.find('=');
  const auto name = word.substr(0, equals);
  const auto value = equals == std::string_view::npos ? std::string_view{} : word.substr(equals + 1);
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  constexpr std::uint64_t longest = 24ULL * 3600 * 1000;
  const bool file = (fault.mask & kFileOps) != 0;
  if (name == "count") {
    fault.count = number(name, value, most);
  } else if (name == "after") {
    fault.after = number(name, value, most);
  } else if (name == "ms" && fault.kind == FaultKind::delay) {
    fault.delay = std::chrono::milliseconds(number(name, value, longest));
  } else if (name == "status" && fault.kind == FaultKind::error && !file) {
    fault.status = static_cast<nvme::Status>(number(name, value, 0x7FFF));
  } else if (name == "error" && fault.kind == FaultKind::error && file) {
    fault.error_number = error_of(value);
  } else {
    throw std::invalid_argument("fault: '" + std::string(word) +
                                "' must be count=N, after=N, ms=N (delay), status=N (error of a command) or "
                                "error=EIO|ENOSPC|ENOMEM "
                                "(error of the file)");
  }
}

}  // namespace

std::string_view to_string(FaultKind kind) noexcept {
  const auto found = std::ranges::find(kKinds, kind, &KindName::kind);
  return found == kKinds.end() ? "?" : found->name;
}

Fault parse_fault(std::string_view text) {
  std::istringstream words{std::string(text)};
  std::string op;
  std::string kind;
  if (!(words >> op >> kind)) {
    throw std::invalid_argument("fault: say what and how, such as 'retrieve delay ms=500 count=3'; what: " +
                                names(kOps) + "; how: " + names(kKinds));
  }
  const auto& named_op = find_name(kOps, "operation", op);
  const auto& named_kind = find_name(kKinds, "kind", kind);
  if ((named_op.mask & named_kind.mask) == 0) {
    throw std::invalid_argument("fault: " + kind + " can't strike " + op);
  }
  Fault fault;
  fault.ops = op;
  fault.mask = named_op.mask & named_kind.mask;
  fault.kind = named_kind.kind;
  fault.error_number = EIO;
  for (std::string word; words >> word;)
    set_parameter(fault, word);
  if (fault.kind == FaultKind::delay && fault.delay.count() == 0) {
    throw std::invalid_argument("fault: a delay needs ms=N");
  }
  return fault;
}

std::optional<FaultOp> fault_op_of(const nvme::Sqe& sqe, bool admin_queue) noexcept {
  if (sqe.opcode == nvme::kFabricsOpcode) {
    const auto type = static_cast<nvme::FabricsType>(sqe.nsid & 0xFFU);
    return type == nvme::FabricsType::connect ? FaultOp::connect : FaultOp::property;
  }
  if (!admin_queue) {
    switch (static_cast<nvme::KvOpcode>(sqe.opcode)) {
      case nvme::KvOpcode::store:
        return FaultOp::store;
      case nvme::KvOpcode::retrieve:
        return FaultOp::retrieve;
      case nvme::KvOpcode::list:
        return FaultOp::list;
      case nvme::KvOpcode::remove:
        return FaultOp::remove;
      case nvme::KvOpcode::exist:
        return FaultOp::exist;
    }
    return std::nullopt;
  }
  switch (static_cast<nvme::AdminOpcode>(sqe.opcode)) {
    case nvme::AdminOpcode::identify:
      return FaultOp::identify;
    case nvme::AdminOpcode::set_features:
      return FaultOp::set_features;
    case nvme::AdminOpcode::get_features:
      return FaultOp::get_features;
    case nvme::AdminOpcode::keep_alive:
      return FaultOp::keep_alive;
    case nvme::AdminOpcode::abort:
      return FaultOp::abort;
    case nvme::AdminOpcode::async_event_request:
      return FaultOp::async_event;
    case nvme::AdminOpcode::get_log_page:
      return FaultOp::log_page;
  }
  return std::nullopt;
}

std::uint32_t Faults::add(Fault fault) {
  const std::lock_guard lock(mutex_);
  std::erase_if(faults_, [](const Fault& old) { return old.spent(); });
  if (faults_.size() >= kMax) {
    throw std::invalid_argument("fault: " + std::to_string(kMax) + " are on already; clear them first");
  }
  fault.id = ++last_id_;
  log_event(
      Level::warning, "fault_set",
      {{"fault", fault.id}, {"op", fault.ops}, {"kind", to_string(fault.kind)}, {"count", fault.count}});
  faults_.push_back(std::move(fault));
  armed_ = true;
  return last_id_;
}

std::size_t Faults::clear() {
  const std::lock_guard lock(mutex_);
  const auto on = static_cast<std::size_t>(
      std::ranges::count_if(faults_, [](const Fault& fault) { return !fault.spent(); }));
  faults_.clear();
  armed_ = false;
  ++clearings_;
  changed_.notify_all();
  log_event(Level::info, "faults_cleared", {{"faults", on}});
  return on;
}

void Faults::release() noexcept {
  const std::lock_guard lock(mutex_);
  released_ = true;
  changed_.notify_all();
}

std::vector<Fault> Faults::all() const {
  const std::lock_guard lock(mutex_);
  return faults_;
}

std::optional<Fault> Faults::take_armed(FaultOp op) {
  const std::lock_guard lock(mutex_);
  for (auto& fault : faults_) {
    if ((fault.mask & bit(op)) == 0 || fault.spent()) continue;
    if (fault.after > 0) {
      --fault.after;
      continue;
    }
    ++fault.hits;
    return fault;
  }
  return std::nullopt;
}

void Faults::wait(const Fault& fault) {
  std::unique_lock lock(mutex_);
  const auto over = [this, before = clearings_] { return released_ || clearings_ != before; };
  if (fault.kind == FaultKind::hang) {
    changed_.wait(lock, over);
  } else {
    changed_.wait_for(lock, fault.delay, over);
  }
}

}  // namespace akv::softcard
