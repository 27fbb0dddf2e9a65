#include "base/guarded_memory.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <system_error>

namespace akv {
namespace {

constexpr std::size_t kSlots = 4096;
constexpr std::size_t kPage = 4096;

// What the signal handler knows of one mapping. Static, so that it may read it whenever it comes; `version`
// is odd while another thread changes the place.
struct Slot {
  std::atomic<std::uint64_t> version{0};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::size_t> size{0};  // 0: free
  std::atomic<bool> broken{false};
};

std::array<Slot, kSlots> slots;
std::mutex slots_mutex;
struct sigaction former_action;

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void write_slot(Slot& slot, std::uintptr_t begin, std::size_t size) noexcept {
  slot.version.fetch_add(1);
  slot.begin.store(begin);
  slot.size.store(size);
  slot.version.fetch_add(1);
}

// The whole mapping becomes private memory at its place. A system call and nothing else: it runs in the
// signal handler, also under sanitizers, which wrap mmap().
bool replace(std::uintptr_t begin, std::size_t size) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  const long at = ::syscall(SYS_mmap, begin, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0L);
  return static_cast<std::uintptr_t>(at) == begin;
}

// A mapping that is being accessed is not released meanwhile, so its slot is stable; others may change.
bool break_mapping_at(std::uintptr_t address) noexcept {
  for (Slot& slot : slots) {
    const std::uint64_t version = slot.version.load();
    const std::uintptr_t begin = slot.begin.load();
    const std::size_t size = slot.size.load();
    if (size == 0 || address < begin || address - begin >= size) continue;
    if (version % 2 != 0 || slot.version.load() != version) continue;
    slot.broken.store(true);
    return replace(begin, size);
  }
  return false;
}

void pass_on(int number, siginfo_t* info, void* context) noexcept {
  if ((former_action.sa_flags & SA_SIGINFO) != 0) return former_action.sa_sigaction(number, info, context);
  if (former_action.sa_handler != SIG_DFL && former_action.sa_handler != SIG_IGN)
    return former_action.sa_handler(number);
  // The access is repeated after this returns, and ends the process as it would have without us.
  std::signal(number, SIG_DFL);
}

void on_bus_error(int number, siginfo_t* info, void* context) noexcept {
  const int kept = errno;
  // si_code > 0: of the kernel, about an address, and not sent by somebody.
  const bool ours = info->si_code > 0 && break_mapping_at(reinterpret_cast<std::uintptr_t>(info->si_addr));
  if (!ours) pass_on(number, info, context);
  errno = kept;
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (::sigaction(SIGBUS, &action, &former_action) != 0)
      throw std::system_error(errno, std::generic_category(), "sigaction");
  });
}

std::size_t take_slot(std::span<std::byte> bytes) {
  const std::scoped_lock lock(slots_mutex);
  for (std::size_t i = 0; i < kSlots; ++i) {
    if (slots[i].size.load() != 0) continue;
    slots[i].broken.store(false);
    write_slot(slots[i], reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size());
    return i;
  }
  throw std::system_error(ENOSPC, std::generic_category(), "too many guarded mappings");
}

std::span<std::byte> map_shared(int fd, std::uint64_t offset, std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  return {static_cast<std::byte*>(memory), bytes};
}

}  // namespace

GuardedMapping::GuardedMapping(int fd, std::uint64_t offset, std::size_t bytes) {
  install_handler();
  bytes_ = map_shared(fd, offset, bytes);
  try {
    slot_ = take_slot(bytes_);
  } catch (...) {
    ::munmap(bytes_.data(), bytes_.size());
    throw;
  }
}

GuardedMapping::~GuardedMapping() {
  // The slot first: it must never name memory that is mapped for somebody else by then.
  const std::scoped_lock lock(slots_mutex);
  write_slot(slots[slot_], 0, 0);
  ::munmap(bytes_.data(), bytes_.size());
}

bool GuardedMapping::broken() const noexcept {
  return slots[slot_].broken.load();
}

void touch_pages(std::span<const iovec> vectors) noexcept {
  for (const iovec& vector : vectors) {
    const auto* const bytes = static_cast<const volatile std::byte*>(vector.iov_base);
    for (std::size_t at = 0; at < vector.iov_len; at += kPage)
      static_cast<void>(bytes[at]);
    if (vector.iov_len != 0) static_cast<void>(bytes[vector.iov_len - 1]);
  }
}

}  // namespace akv
