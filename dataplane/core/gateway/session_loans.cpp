// Blocks that a session's client reads where the read cache has them: BORROW, RETURN.
#include "base/bytes.hpp"
#include "gateway/session.hpp"

namespace akv::gateway {

// The cache is shared by all namespaces. Where they have secrets, one must not read what is another's.
bool Session::may_borrow(const wire::Hello& hello) const noexcept {
  return (hello.features & wire::kFeatureBorrowing) != 0 && memory_ != nullptr && context_.cache.lends() &&
         context_.shared.secrets.empty();
}

void Session::attach_memory() {
  if (memory_ == nullptr) return;
  std::vector<int> descriptors{memory_->fd()};
  if (loans_) descriptors.push_back(context_.cache.fd());
  // The cache outlives its worker's sessions.
  output_.attach_descriptors(std::move(descriptors), memory_);
}

void Session::take_borrow(const Frame& frame) {
  const auto keys = decode_keys(frame);
  const HotBlocks* const hot = context_.host.hot_blocks(frame.header.dialog_id);
  const auto body = begin_reply(
      frame.header, static_cast<std::uint32_t>(wire::kBorrowReplyEntryBytes * keys.size()), output_);
  std::uint64_t lent = 0;
  std::uint64_t bytes = 0;
  auto rest = body;
  const auto reply = [&](std::optional<ReadCache::Slot> slot) {
    const wire::Loan loan = slot ? lend(*slot) : wire::Loan{};
    if (loan.status == wire::EntryStatus::ok) ++lent;
    bytes += loan.length;
    wire::encode_loan(loan, rest.first<wire::kBorrowReplyEntryBytes>());
    rest = rest.subspan(wire::kBorrowReplyEntryBytes);
  };
  if (hot != nullptr) {
    hot->find_each(keys, keyspace()->space, reply);
  } else {
    for (std::size_t i = 0; i < keys.size(); ++i)
      reply(std::nullopt);
  }
  count_loans(lent, keys.size() - lent, bytes);
  flush_.request();
}

wire::Loan Session::lend(ReadCache::Slot slot) {
  if (!loans_->lend(slot)) return {};
  context_.cache.used(slot);
  return {.status = wire::EntryStatus::ok,
          .length = static_cast<std::uint32_t>(context_.cache.bytes(slot).size()),
          .offset = context_.cache.offset(slot)};
}

// A block that was lent is a GET that hit; one that was not will be asked for by a GET.
void Session::count_loans(std::uint64_t lent, std::uint64_t others, std::uint64_t bytes) {
  Counters& counters = context_.counters;
  counters.add(Counter::gets, lent);
  counters.add(Counter::hits, lent);
  counters.add(Counter::cache_hits, lent);
  counters.add(Counter::bytes_read, bytes);
  counters.add(Counter::borrowed, lent);
  counters.add(Counter::borrow_misses, others);
}

void Session::take_give_back(const Frame& frame) {
  if (!loans_->give_back(decode_offsets(frame))) {
    context_.counters.add(Counter::no_such_block);
    return refuse(frame.header, wire::FrameStatus::no_such_block,
                  "an offset is not that of a borrowed block");
  }
  static_cast<void>(begin_reply(frame.header, 0, output_));
  flush_.request();
}

}  // namespace akv::gateway
