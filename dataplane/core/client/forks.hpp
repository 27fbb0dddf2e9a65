// What must be whole in a forked child: a lock that another thread had at that moment would stay locked
// there, and what it guards half changed.
#pragma once

namespace akv::client {

// Its three functions run around every fork of the process; none may throw or wait for anything but a lock
// that is held shortly.
class ForkAware {
 public:
  virtual void before_fork() = 0;
  virtual void after_fork_in_parent() = 0;
  virtual void after_fork_in_child() = 0;

 protected:
  ~ForkAware() = default;
};

// From its constructor's end to its destructor's beginning; not while a lock of its own is held.
void add_fork_aware(ForkAware& object);
void remove_fork_aware(ForkAware& object) noexcept;

}  // namespace akv::client
