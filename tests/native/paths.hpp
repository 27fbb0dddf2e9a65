// Where this build has what tests need besides their own code.
#pragma once

namespace akv::test {

// The JSON files of tests/vectors.
extern const char* const kVectorsDirectory;
// The program akv-softcard.
extern const char* const kSoftcard;

}  // namespace akv::test
