// From Python's keys and blocks to frames, and from replies to Python's results, without Python code for an
// entry.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/stream.hpp"

namespace akv::client {

namespace nb = nanobind;

// What the reference client's classes look like from here. Made once; the GIL is held wherever it is used.
class Codec {
 public:
  // `block` and `region_block` are the classes of integration.client.memory and .regions, `engine_key` and
  // `got` those of .keys and .transfers, `statuses` the entry statuses in the order of their numbers.
  Codec(nb::type_object block, nb::type_object region_block, nb::object engine_key, nb::type_object got,
        nb::tuple statuses);

  // The frame of a PUT or GET of whole blocks that lie in the memory of the session of `lease`, which are
  // then held as Block.hold() does it. Nothing where one of them is anything else; then nothing is held.
  [[nodiscard]] std::optional<std::vector<std::byte>> transfer(const FrameHeader& header, nb::handle keys,
                                                               const nb::tuple& blocks, nb::handle lease,
                                                               std::uint32_t max_value);
  // As Block.release(), for all of them.
  void release(const nb::tuple& blocks) noexcept;
  // The frame of a request that has keys alone.
  [[nodiscard]] std::vector<std::byte> keyed(const FrameHeader& header, nb::handle keys);

  // Results of an OK reply; null where the reply is anything but the plain answer to the request.
  [[nodiscard]] nb::object put_result(const Frame& reply, std::uint32_t count);
  [[nodiscard]] nb::object get_result(const Frame& reply, const nb::tuple& blocks);
  [[nodiscard]] static nb::object exists_result(const Frame& reply, std::uint32_t count);
  [[nodiscard]] static nb::object prefix_result(const Frame& reply, std::uint32_t count);
  // The fields of a Loan: views into `cache`, a memoryview of bytes, their packed offsets, and `lease`.
  [[nodiscard]] static nb::object borrow_result(const Frame& reply, std::uint32_t count, nb::handle cache,
                                                nb::handle lease);
  [[nodiscard]] static nb::object return_result(const Frame& reply, std::uint32_t count);

 private:
  struct Place {
    std::uint64_t offset;
    std::uint32_t length;
    std::uint16_t region;
  };

  [[nodiscard]] std::optional<Place> place(PyObject* block, nb::handle lease);
  [[nodiscard]] bool find_region(PyObject* region, nb::handle lease);
  void hold(PyObject* block, nb::handle lease) noexcept;
  void release_first(const nb::tuple& blocks, std::size_t count) noexcept;
  void copy_key(nb::handle key, std::byte* to) const;
  [[nodiscard]] std::uint32_t length_of(PyObject* block) const;
  [[nodiscard]] nb::object make_got(std::uint32_t status, std::uint32_t length) const;

  nb::object block_;
  nb::object region_block_;
  nb::object engine_key_;
  nb::object got_;
  nb::tuple statuses_;
  nb::object zero_;
  nb::object one_;
  // Where instances have their slots, in bytes.
  Py_ssize_t freed_;
  Py_ssize_t lease_;
  Py_ssize_t transfers_;
  Py_ssize_t length_;
  Py_ssize_t offset_;
  Py_ssize_t region_;
  // The region that was looked at last; good while the GIL is not let go.
  PyObject* known_region_{nullptr};
  std::uint16_t known_number_{0};
};

}  // namespace akv::client
