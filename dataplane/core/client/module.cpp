// integration.client._native: what the client's hot path is made of (docs/client.md, "Two implementations").
#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <system_error>
#include <utility>

#include "client/call.hpp"
#include "client/codec.hpp"
#include "client/stream.hpp"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace akv::client {
namespace {

UniqueFd duplicate(int fd) {
  UniqueFd made(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!made) throw std::system_error(errno, std::generic_category(), "dup");
  return made;
}

std::shared_ptr<Stream> make_stream(int socket, int attention, std::uint32_t max_body, std::uint32_t credits,
                                    std::uint64_t max_entries) {
  return std::make_shared<Stream>(duplicate(socket), attention < 0 ? UniqueFd() : duplicate(attention),
                                  Stream::Limits{max_body, credits, max_entries});
}

void send(Stream& stream, const nb::bytes& frame, int descriptor) {
  const auto* const from = static_cast<const std::byte*>(frame.data());
  stream.send({from, from + frame.size()}, descriptor < 0 ? UniqueFd() : duplicate(descriptor));
}

// (opcode, status, entries, request id, dialog id, body) of each.
nb::list take_foreign(Stream& stream) {
  nb::list frames;
  for (const Frame& frame : stream.take_foreign()) {
    const FrameHeader& header = frame.header;
    frames.append(nb::make_tuple(header.opcode, header.status, header.count, header.request_id,
                                 header.dialog_id, nb::bytes(frame.body.data(), frame.body.size())));
  }
  return frames;
}

// (the gateway broke the protocol, why), or None.
nb::object failure(Stream& stream) {
  const auto why = stream.why();
  if (!why) return nb::none();
  return nb::make_tuple(why->protocol, why->text.c_str());
}

std::unique_ptr<Call> begin_transfer(const Session& session, bool put, nb::handle keys, nb::handle blocks,
                                     std::uint64_t dialog, bool told) {
  return Call::transfer(session, put ? CallKind::put : CallKind::get, keys, blocks, dialog, told);
}

std::unique_ptr<Call> begin_exists(const Session& session, bool prefix, nb::handle keys, std::uint64_t dialog,
                                   bool told) {
  return Call::keyed(session, prefix ? CallKind::prefix : CallKind::exists, keys, dialog, told);
}

// Null where nothing is lent.
std::unique_ptr<Call> begin_borrow(const Session& session, nb::handle keys, std::uint64_t dialog, bool told) {
  if (session.cache.is_none()) return nullptr;
  return Call::keyed(session, CallKind::borrow, keys, dialog, told);
}

// What the operating system refused is an OSError, as Python's own sockets raise it.
void translate_system_error(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    const nb::object arguments = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  }
}

void bind_stream(nb::module_& module) {
  nb::class_<Stream>(module, "Stream")
      .def("has_room", &Stream::has_room)
      .def("take_credit", &Stream::take_credit)
      .def("give_back", &Stream::give_back)
      .def("next_request_id", &Stream::next_request_id)
      .def("send", &send)
      .def("process", &Stream::process)
      .def("take_foreign", &take_foreign)
      .def("take_told", &Stream::take_told)
      .def("set_hungry", &Stream::set_hungry)
      .def("close", &Stream::close)
      .def_prop_ro("attended", &Stream::attended)
      .def_prop_ro("has_output", &Stream::has_output)
      .def_prop_ro("pending", &Stream::pending)
      .def_prop_ro("failure", &failure)
      .def_prop_ro("last_received",
                   [](const Stream& stream) { return static_cast<double>(stream.last_received()) / 1e9; });
  module.def("make_stream", &make_stream);
}

void bind_calls(nb::module_& module) {
  nb::class_<Codec>(module, "Codec")
      .def(nb::init<nb::type_object, nb::type_object, nb::object, nb::type_object, nb::tuple>());
  nb::class_<Call>(module, "Call")
      .def("result", &Call::result)
      .def("disown", &Call::disown)
      .def_prop_ro("answered", &Call::answered)
      .def_prop_ro("request_id", &Call::request_id)
      .def_prop_ro("stream", &Call::stream);
  nb::class_<Session>(module, "Session")
      .def(
          "__init__",
          [](Session* self, std::shared_ptr<Stream> stream, std::shared_ptr<Codec> codec, nb::object lease,
             std::uint32_t max_batch, std::uint32_t max_value, nb::object cache) {
            if (!cache.is_none() && !PyMemoryView_Check(cache.ptr()))
              throw nb::type_error("the cache's memory is no memoryview");
            new (self) Session{std::move(stream), std::move(codec), std::move(lease),
                               max_batch,         max_value,        std::move(cache)};
          },
          "stream"_a, "codec"_a, "lease"_a, "max_batch"_a, "max_value"_a, "cache"_a.none())
      .def("begin_transfer", &begin_transfer)
      .def("begin_exists", &begin_exists)
      .def("begin_borrow", &begin_borrow)
      .def("begin_return", &Call::give_back);
}

}  // namespace

NB_MODULE(_native, module) {
  // A client that lives until its process ends is no leak.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(&translate_system_error);
  bind_stream(module);
  bind_calls(module);
}

}  // namespace akv::client
