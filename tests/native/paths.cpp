#include "paths.hpp"

namespace akv::test {

const char* const kVectorsDirectory = AKV_VECTORS_DIRECTORY;
const char* const kSoftcard = AKV_SOFTCARD;

}  // namespace akv::test
