#include "client/codec.hpp"

#include <structmember.h>

#include <cstring>
#include <utility>

#include "base/bytes.hpp"

namespace akv::client {
namespace {

constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kEntryBytes = 48;
constexpr std::size_t kGotBytes = 8;
constexpr std::size_t kExistsBytes = 8;
constexpr std::size_t kLoanBytes = 16;
constexpr std::uint32_t kOk = 0;
constexpr std::uint32_t kNotCached = 7;
constexpr std::uint32_t kLate = 6;  // it, and what comes after it, is for the reference client to look at

Py_ssize_t slot_offset(nb::handle type, const char* name) {
  const nb::object descriptor = type.attr(name);
  if (Py_TYPE(descriptor.ptr()) != &PyMemberDescr_Type) throw nb::type_error("a block's field is no slot");
  return reinterpret_cast<PyMemberDescrObject*>(descriptor.ptr())->d_member->offset;
}

PyObject*& slot(PyObject* object, Py_ssize_t offset) noexcept {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
}

void set_slot(PyObject* object, Py_ssize_t offset, PyObject* value) noexcept {
  Py_INCREF(value);
  PyObject* const old = std::exchange(slot(object, offset), value);
  Py_XDECREF(old);
}

// Sequences as a list or tuple; borrowed items.
class Items {
 public:
  explicit Items(nb::handle sequence)
      : fast_(nb::steal(PySequence_Fast(sequence.ptr(), "keys are no sequence"))) {
    if (!fast_.is_valid()) throw nb::python_error();
  }
  [[nodiscard]] std::size_t size() const noexcept {
    return static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast_.ptr()));
  }
  // Looked up each time: code that runs in between may change a list.
  [[nodiscard]] nb::object operator[](std::size_t index) const {
    if (index >= size()) throw nb::value_error("keys changed while they were read");
    return nb::borrow(PySequence_Fast_GET_ITEM(fast_.ptr(), static_cast<Py_ssize_t>(index)));
  }

 private:
  nb::object fast_;
};

struct Loan {
  std::uint32_t status;
  std::uint32_t length;
  std::uint64_t offset;

  // A block that is not lent, or one inside of memory of `size` bytes.
  [[nodiscard]] bool is_plain(std::uint64_t size) const noexcept {
    if (status == kNotCached) return true;
    return status == kOk && length != 0 && offset < size && length <= size - offset;
  }
};

Loan loan_at(const Frame& reply, std::uint32_t index) noexcept {
  const std::byte* const entry = reply.body.data() + kLoanBytes * index;
  return {load_le<std::uint32_t>(entry), load_le<std::uint32_t>(entry + 4),
          load_le<std::uint64_t>(entry + 8)};
}

// cache[offset:offset + length], without the slice and its numbers. A memoryview of a memoryview has fields
// of its own, which slicing sets in the same way; the memory stays alive with it.
nb::object view_of(nb::handle cache, const Loan& loan) {
  nb::object view = nb::steal(PyMemoryView_FromObject(cache.ptr()));
  if (!view.is_valid()) throw nb::python_error();
  Py_buffer* const buffer = PyMemoryView_GET_BUFFER(view.ptr());
  buffer->buf = static_cast<char*>(buffer->buf) + loan.offset;
  buffer->len = static_cast<Py_ssize_t>(loan.length);
  buffer->shape[0] = buffer->len;
  return view;
}

bool plain(const Frame& reply, std::uint32_t count, std::size_t body_bytes) noexcept {
  return reply.header.status == 0 && reply.header.count == count && reply.body.size() == body_bytes;
}

}  // namespace

Codec::Codec(nb::type_object block, nb::type_object region_block, nb::object engine_key, nb::type_object got,
             nb::tuple statuses)
    : block_(std::move(block)),
      region_block_(std::move(region_block)),
      engine_key_(std::move(engine_key)),
      got_(std::move(got)),
      statuses_(std::move(statuses)),
      zero_(nb::int_(0)),
      one_(nb::int_(1)),
      freed_(slot_offset(block_, "_freed")),
      lease_(slot_offset(block_, "_lease")),
      transfers_(slot_offset(block_, "_transfers")),
      length_(slot_offset(block_, "length")),
      offset_(slot_offset(block_, "offset")),
      region_(slot_offset(region_block_, "_region")) {
  if (statuses_.size() < kLate) throw nb::value_error("there are more statuses");
}

void Codec::copy_key(nb::handle key, std::byte* to) const {
  nb::object made = nb::borrow(key);
  if (!PyBytes_CheckExact(key.ptr()) || PyBytes_GET_SIZE(key.ptr()) != static_cast<Py_ssize_t>(kKeyBytes))
    made = engine_key_(key);
  if (!PyBytes_CheckExact(made.ptr()) || PyBytes_GET_SIZE(made.ptr()) != static_cast<Py_ssize_t>(kKeyBytes))
    throw nb::type_error("engine_key gave no 32 bytes");
  std::memcpy(to, PyBytes_AS_STRING(made.ptr()), kKeyBytes);
}

std::uint32_t Codec::length_of(PyObject* block) const {
  return static_cast<std::uint32_t>(PyLong_AsUnsignedLong(slot(block, length_)));
}

// The present session has the region, as Region.registered and Region.number tell.
bool Codec::find_region(PyObject* region, nb::handle lease) {
  if (region == known_region_) return true;
  const nb::handle object(region);
  if (!object.attr("lease").is(lease) || nb::cast<bool>(object.attr("closed"))) return false;
  known_number_ = nb::cast<std::uint16_t>(object.attr("number"));
  known_region_ = region;
  return true;
}

// Where a block is that can be named as it is: not freed, not busy, and of this session.
std::optional<Codec::Place> Codec::place(PyObject* block, nb::handle lease) {
  const bool leased = Py_TYPE(block) == reinterpret_cast<PyTypeObject*>(block_.ptr());
  const bool in_region = Py_TYPE(block) == reinterpret_cast<PyTypeObject*>(region_block_.ptr());
  if (!leased && !in_region) return std::nullopt;
  if (slot(block, freed_) != Py_False || slot(block, transfers_) != zero_.ptr()) return std::nullopt;
  if (leased && slot(block, lease_) != lease.ptr()) return std::nullopt;
  if (in_region && !find_region(slot(block, region_), lease)) return std::nullopt;
  return Place{.offset = PyLong_AsUnsignedLongLong(slot(block, offset_)),
               .length = length_of(block),
               .region = in_region ? known_number_ : std::uint16_t{0}};
}

void Codec::hold(PyObject* block, nb::handle lease) noexcept {
  set_slot(block, lease_, lease.ptr());
  set_slot(block, transfers_, one_.ptr());
}

void Codec::release_first(const nb::tuple& blocks, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    set_slot(PyTuple_GET_ITEM(blocks.ptr(), static_cast<Py_ssize_t>(i)), transfers_, zero_.ptr());
}

void Codec::release(const nb::tuple& blocks) noexcept {
  release_first(blocks, blocks.size());
}

// Keys first: making one can run Python code, and between looking at a block and holding it none may run.
std::optional<std::vector<std::byte>> Codec::transfer(const FrameHeader& header, nb::handle keys,
                                                      const nb::tuple& blocks, nb::handle lease,
                                                      std::uint32_t max_value) {
  const Items names(keys);
  const std::size_t count = blocks.size();
  if (names.size() != count) return std::nullopt;
  std::vector<std::byte> frame(kHeaderBytes + count * kEntryBytes);
  for (std::size_t i = 0; i < count; ++i)
    copy_key(names[i], frame.data() + kHeaderBytes + i * kEntryBytes);
  known_region_ = nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    PyObject* const block = PyTuple_GET_ITEM(blocks.ptr(), static_cast<Py_ssize_t>(i));
    const auto found = place(block, lease);
    // A block that is named twice is held by now.
    if (!found || found->length > max_value) {
      release_first(blocks, i);
      return std::nullopt;
    }
    hold(block, lease);
    std::byte* const entry = frame.data() + kHeaderBytes + i * kEntryBytes + kKeyBytes;
    store_le(entry, found->offset);
    store_le(entry + 8, found->length);
    store_le(entry + 12, found->region);
  }
  encode_header(header, frame.size() - kHeaderBytes, frame);
  return frame;
}

std::vector<std::byte> Codec::keyed(const FrameHeader& header, nb::handle keys) {
  const Items names(keys);
  std::vector<std::byte> frame(kHeaderBytes + names.size() * kKeyBytes);
  for (std::size_t i = 0; i < names.size(); ++i)
    copy_key(names[i], frame.data() + kHeaderBytes + i * kKeyBytes);
  encode_header(header, frame.size() - kHeaderBytes, frame);
  return frame;
}

nb::object Codec::put_result(const Frame& reply, std::uint32_t count) {
  if (!plain(reply, count, std::size_t{4} * count)) return {};
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto status = load_le<std::uint32_t>(reply.body.data() + std::size_t{4} * i);
    if (status >= kLate) return {};
    nb::object member = statuses_[status];
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), member.release().ptr());
  }
  return list;
}

nb::object Codec::make_got(std::uint32_t status, std::uint32_t length) const {
  auto* const type = reinterpret_cast<PyTypeObject*>(got_.ptr());
  nb::object made = nb::steal(type->tp_alloc(type, 2));
  if (!made.is_valid()) throw nb::python_error();
  nb::object member = statuses_[status];
  PyTuple_SET_ITEM(made.ptr(), 0, member.release().ptr());
  PyTuple_SET_ITEM(made.ptr(), 1, nb::int_(length).release().ptr());
  return made;
}

nb::object Codec::get_result(const Frame& reply, const nb::tuple& blocks) {
  const auto count = static_cast<std::uint32_t>(blocks.size());
  if (!plain(reply, count, kGotBytes * count)) return {};
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  // Equal neighbours are one object: they can't be changed.
  nb::object last;
  std::pair<std::uint32_t, std::uint32_t> last_value;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::byte* const entry = reply.body.data() + kGotBytes * i;
    const std::pair value{load_le<std::uint32_t>(entry), load_le<std::uint32_t>(entry + 4)};
    PyObject* const block = PyTuple_GET_ITEM(blocks.ptr(), static_cast<Py_ssize_t>(i));
    if (value.first >= kLate || (value.first == kOk && value.second > length_of(block))) return {};
    if (!last.is_valid() || value != last_value) last = make_got(value.first, value.second);
    last_value = value;
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), last.inc_ref().ptr());
  }
  return list;
}

nb::object Codec::exists_result(const Frame& reply, std::uint32_t count) {
  if (!plain(reply, count, kExistsBytes + (count + 7) / 8)) return {};
  if (load_le<std::uint32_t>(reply.body.data()) > count) return {};
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool present = (reply.body[kExistsBytes + i / 8] >> (i % 8) & std::byte{1}) != std::byte{0};
    PyObject* const answer = present ? Py_True : Py_False;
    Py_INCREF(answer);
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), answer);
  }
  return list;
}

nb::object Codec::prefix_result(const Frame& reply, std::uint32_t count) {
  if (reply.header.status != 0 || reply.header.count != count || reply.body.size() < kExistsBytes) return {};
  const auto prefix = load_le<std::uint32_t>(reply.body.data());
  return prefix > count ? nb::object() : nb::int_(prefix);
}

nb::object Codec::borrow_result(const Frame& reply, std::uint32_t count, nb::handle cache, nb::handle lease) {
  if (!plain(reply, count, kLoanBytes * count)) return {};
  const auto size = static_cast<std::uint64_t>(PyMemoryView_GET_BUFFER(cache.ptr())->len);
  std::vector<std::byte> offsets;
  offsets.reserve(sizeof(std::uint64_t) * count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const Loan loan = loan_at(reply, i);
    if (!loan.is_plain(size)) return {};
    if (loan.status != kOk) continue;
    offsets.resize(offsets.size() + sizeof loan.offset);
    store_le(offsets.data() + offsets.size() - sizeof loan.offset, loan.offset);
  }
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!list.is_valid()) throw nb::python_error();
  for (std::uint32_t i = 0; i < count; ++i) {
    const Loan loan = loan_at(reply, i);
    nb::object item = loan.status == kOk ? view_of(cache, loan) : nb::object(nb::none());
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), item.release().ptr());
  }
  return nb::make_tuple(list, nb::bytes(offsets.data(), offsets.size()), lease);
}

nb::object Codec::return_result(const Frame& reply, std::uint32_t count) {
  return plain(reply, count, 0) ? nb::object(nb::bool_(true)) : nb::object();
}

}  // namespace akv::client
