#include "fabric/ending.hpp"

#include <cerrno>
#include <system_error>

namespace akv::fabric {

Ending ending_of(int error) noexcept {
  switch (error) {
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
      return Ending::reset;
    case ECONNREFUSED:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
    case ETIMEDOUT:
      return Ending::unreachable;
    default:
      return Ending::local;
  }
}

Fault system_fault(const std::string& what, int error) {
  return {what + ": " + std::generic_category().message(error), std::nullopt, ending_of(error)};
}

}  // namespace akv::fabric
