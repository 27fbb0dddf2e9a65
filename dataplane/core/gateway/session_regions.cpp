// Memory that a session's client registers: descriptors, REGISTER, UNREGISTER, and transfers in it.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/bytes.hpp"
#include "gateway/session.hpp"

namespace akv::gateway {
namespace {

// A client sends one a frame. What comes in one message beyond these the kernel closes.
constexpr std::size_t kDescriptorsPerMessage = 4;
// Two can wait for the rest of their frames; more were sent with no REGISTER to them.
constexpr std::size_t kMaxWaitingDescriptors = 4;

}  // namespace

// Where no regions were granted the kernel closes the descriptors that a client sends.
long Session::receive(std::span<std::byte> into) {
  if (!regions_granted_) return ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsPerMessage * sizeof(int))> control;
  iovec vector{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got > 0) take_descriptors(message);
  return got;
}

void Session::take_descriptors(msghdr& message) {
  for (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, const_cast<cmsghdr*>(header))) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      descriptors_.emplace_back(fd);
    }
    return;
  }
  // One was sent, and this process may have no more: its REGISTER is told so.
  if ((message.msg_flags & MSG_CTRUNC) != 0) descriptors_.emplace_back();
}

// The one that came with the first byte of the frame that is being read.
UniqueFd Session::next_descriptor() {
  if (descriptors_.empty()) throw wire::BadBody{"REGISTER came without a descriptor"};
  UniqueFd next = std::move(descriptors_.front());
  descriptors_.pop_front();
  return next;
}

void Session::refuse_region(const Frame& frame, wire::FrameStatus status, std::string_view text) {
  context_.counters.add(Counter::regions_refused);
  refuse(frame.header, status, text);
}

void Session::check_descriptors() {
  if (state_ != State::open || descriptors_.size() <= kMaxWaitingDescriptors) return;
  fail_stream("descriptors came that belong to no REGISTER", 0, wire::FrameStatus::bad_request);
}

// What the client's other requests name is in doubt as well, so the session ends; nobody else is concerned.
void Session::fail_region(const arena::Region& region, std::uint64_t request_id) {
  context_.counters.add(Counter::regions_broken);
  fail_stream("the file of region " + std::to_string(region.number()) + " is shorter than it was registered",
              request_id, wire::FrameStatus::bad_request);
}

void Session::take_register(const Frame& frame) {
  UniqueFd file = next_descriptor();
  const RegionRequest wanted = decode_register(frame);
  if (!file) return refuse_region(frame, wire::FrameStatus::no_memory, "the gateway has no descriptor left");
  auto place = std::ranges::find_if(regions_, [](const auto& known) { return known.region == nullptr; });
  if (place == regions_.end() && regions_.size() == limits().max_regions) {
    return refuse_region(frame, wire::FrameStatus::no_memory,
                         "the session has as many regions as it may have");
  }
  auto reservation = context_.shared.regions->take(wanted.length);
  if (!reservation) {
    return refuse_region(frame, wire::FrameStatus::no_memory,
                         "the regions of all clients would have more bytes than client_regions_size");
  }
  const auto number = static_cast<std::uint16_t>(place - regions_.begin() + 1);
  try {
    auto region =
        std::make_shared<arena::Region>(number, std::move(file), wanted.offset, std::move(reservation));
    if (place == regions_.end()) place = regions_.insert(place, Registered{});
    place->region = std::move(region);
  } catch (const arena::NoRoomForRegion& full) {
    return refuse_region(frame, wire::FrameStatus::no_memory, full.text);
  } catch (const arena::BadRegion& bad) {
    context_.counters.add(Counter::regions_refused);
    throw wire::BadBody{bad.text};
  }
  context_.counters.add(Counter::regions_registered);
  const auto body = begin_reply(frame.header, wire::kRegionBytes, output_);
  std::ranges::fill(body, std::byte{0});
  store_le(body.data(), number);
  flush_.request();
}

void Session::take_unregister(const Frame& frame) {
  const std::size_t number = decode_unregister(frame);
  const bool known = number != 0 && number <= regions_.size() && regions_[number - 1].region != nullptr &&
                     !regions_[number - 1].unregister;
  if (!known) {
    context_.counters.add(Counter::no_such_block);
    return refuse(frame.header, wire::FrameStatus::no_such_block, "the number is not that of a region");
  }
  regions_[number - 1].unregister = frame.header;
  retire(static_cast<std::uint16_t>(number));
}

// Answers UNREGISTER once the memory is the client's again.
void Session::retire(std::uint16_t number) {
  Registered& place = regions_[number - 1U];
  if (!place.unregister || place.region->pinned()) return;
  static_cast<void>(begin_reply(*place.unregister, 0, output_));
  place = {};
  flush_.request();
}

void Session::place_in_region(Batch& batch, Entry& entry, const wire::TransferEntry& wanted) {
  const bool known = wanted.region <= regions_.size() && regions_[wanted.region - 1U].region != nullptr &&
                     !regions_[wanted.region - 1U].unregister;
  const auto region = known ? regions_[wanted.region - 1U].region : nullptr;
  const auto bytes = known ? region->find(wanted.offset, wanted.length) : std::nullopt;
  if (!bytes) return settle_unplaced(batch, entry, wire::EntryStatus::no_such_block);
  const bool get = batch.op == BatchOp::get;
  if (!get && wanted.length > limits().max_value) {
    return settle_unplaced(batch, entry, wire::EntryStatus::too_large);
  }
  if (region->quarantined(*bytes)) {
    return settle_unplaced(batch, entry, get ? wire::EntryStatus::miss : wire::EntryStatus::not_stored);
  }
  entry.memory = bytes->data();
  entry.region = region.get();
  if (std::ranges::find(batch.regions, region) != batch.regions.end()) return;
  region->pin();
  batch.regions.push_back(region);
}

void Session::drained(const std::shared_ptr<Batch>& batch) {
  if (std::erase(lingering_, batch.get()) == 0 || state_ != State::open) return;
  const auto late = [](const Entry& entry) {
    return entry.region != nullptr && entry.status == wire::EntryStatus::late;
  };
  if (std::ranges::any_of(batch->entries, late)) {
    const wire::Header notice{.opcode = static_cast<std::uint16_t>(wire::Opcode::released),
                              .request_id = batch->request_id};
    static_cast<void>(begin_reply(notice, 0, output_));
    flush_.request();
  }
  for (const auto& region : batch->regions)
    retire(region->number());
}

}  // namespace akv::gateway
