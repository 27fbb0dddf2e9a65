#include "client/forks.hpp"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <system_error>
#include <vector>

namespace akv::client {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<ForkAware*> objects;
};

// Never destroyed: threads may outlive static objects.
Registry& registry() {
  static auto* const made = new Registry;
  return *made;
}

void before() {
  registry().mutex.lock();
  for (ForkAware* const object : registry().objects)
    object->before_fork();
}

void in_parent() {
  for (ForkAware* const object : registry().objects)
    object->after_fork_in_parent();
  registry().mutex.unlock();
}

void in_child() {
  for (ForkAware* const object : registry().objects)
    object->after_fork_in_child();
  registry().mutex.unlock();
}

void watch_forks() {
  static const int error = ::pthread_atfork(&before, &in_parent, &in_child);
  if (error != 0) throw std::system_error(error, std::generic_category(), "pthread_atfork");
}

}  // namespace

void add_fork_aware(ForkAware& object) {
  watch_forks();
  const std::lock_guard lock(registry().mutex);
  registry().objects.push_back(&object);
}

void remove_fork_aware(ForkAware& object) noexcept {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().objects, &object);
}

}  // namespace akv::client
