// Every header that comes from the other side is checked before it is used (NVMe TCP Transport 1.0, 3.6).
#include "nvme/pdu.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/bytes.hpp"
#include "nvme/data_digest.hpp"

namespace akv::nvme {
namespace {

using Kind = ParseResult::Kind;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kMaxCapsule = 8192;
constexpr std::uint32_t kMaxData = 65536;

ReceiveRules rules(Role role, Framing framing = {}) {
  return {.role = role, .framing = framing, .max_capsule_data = kMaxCapsule, .max_data = kMaxData};
}

template <WireStruct T>
Bytes encode(const T& pdu, std::uint32_t data = 0, Framing framing = {}) {
  Bytes out(255);
  out.resize(encode_pdu(out, pdu, data, framing));
  return out;
}

Bytes hex(std::initializer_list<unsigned> values) {
  Bytes out;
  for (const auto value : values)
    out.push_back(static_cast<std::byte>(value));
  return out;
}

void expect_error(const Bytes& bytes, const ReceiveRules& with, FatalStatus status, std::uint32_t info) {
  const auto result = parse_pdu(bytes, with);
  ASSERT_EQ(result.kind, Kind::error);
  EXPECT_EQ(result.error.status, status);
  EXPECT_EQ(result.error.info, info);
}

DataPdu data_pdu(PduType type) {
  DataPdu pdu;
  pdu.common.type = static_cast<std::uint8_t>(type);
  return pdu;
}

TEST(PduBytes, R2tIsByteExact) {
  R2t r2t;
  r2t.cccid = 0x1234;
  r2t.ttag = 0x00AB;
  r2t.r2to = 0x1000;
  r2t.r2tl = 0x20000;
  EXPECT_EQ(encode(r2t), hex({0x09, 0x00, 0x18, 0x00, 0x18, 0, 0, 0, 0x34, 0x12, 0xAB, 0x00,
                              0x00, 0x10, 0,    0,    0,    0, 2, 0, 0,    0,    0,    0}));
}

TEST(PduBytes, C2hDataWithDigestsAndAlignmentIsByteExact) {
  auto pdu = data_pdu(PduType::c2h_data);
  pdu.common.flags = kPduLast;
  pdu.cccid = 7;
  pdu.datal = 512;
  // 24 bytes of header, 4 of digest, 4 of padding up to the alignment of 32 bytes (HPDA 7).
  auto expected =
      hex({0x07, 0x07, 0x18, 0x20, 0x24, 0x02, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0});
  const auto digest = header_digest(expected);
  expected.resize(32);
  store_le(expected.data() + 24, digest);
  EXPECT_EQ(encode(pdu, 512, {.hdgst = true, .ddgst = true, .pda = 7}), expected);
}

TEST(PduBytes, IcReqAndTermReqPlaces) {
  IcReq icreq;
  icreq.hpda = 3;
  icreq.dgst = kDigestHeader | kDigestData;
  icreq.maxr2t = 0x01020304;
  const auto bytes = encode(icreq);
  ASSERT_EQ(bytes.size(), kIcPduBytes);
  EXPECT_EQ(Bytes(bytes.begin(), bytes.begin() + 16),
            hex({0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 3, 3, 4, 3, 2, 1}));
  TermReq term;
  term.fes = 1;
  term.fei_low = 0x5678;
  term.fei_high = 0x1234;
  EXPECT_EQ(term.fei(), 0x12345678U);
  const auto raw = encode(term);
  EXPECT_EQ(Bytes(raw.begin() + 8, raw.begin() + 14), hex({1, 0, 0x78, 0x56, 0x34, 0x12}));
}

TEST(PduDigest, HeaderDigestIsCrc32cOfTheHeader) {
  // RFC 3720, B.4: 32 bytes of zeros have CRC-32C 0x8a9136aa.
  EXPECT_EQ(header_digest(Bytes(32)), 0x8A9136AAU);
}

struct RoundTrip {
  Framing framing;
  std::uint32_t data;
};

class PduRoundTrip : public ::testing::TestWithParam<RoundTrip> {};

TEST_P(PduRoundTrip, EveryPrefixAsksForMoreThenTheHeaderComes) {
  const auto [framing, data] = GetParam();
  CapsuleCmd pdu;
  pdu.sqe.cid = 9;
  const auto bytes = encode(pdu, data, framing);
  const auto with = rules(Role::controller, framing);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto result = parse_pdu(std::span(bytes).first(length), with);
    ASSERT_EQ(result.kind, Kind::need_more) << length;
    ASSERT_GT(result.need, length);
    ASSERT_LE(result.need, bytes.size());
  }
  const auto result = parse_pdu(bytes, with);
  ASSERT_EQ(result.kind, Kind::header);
  EXPECT_EQ(result.header.type, PduType::capsule_cmd);
  EXPECT_EQ(result.header.data, data);
  EXPECT_EQ(result.header.prefix, bytes.size());
  EXPECT_EQ(result.header.has_ddgst, framing.ddgst && data != 0);
  EXPECT_EQ(result.header.plen, bytes.size() + data + (result.header.has_ddgst ? kDigestBytes : 0));
}

INSTANTIATE_TEST_SUITE_P(Framings, PduRoundTrip,
                         ::testing::Values(RoundTrip{{}, 0}, RoundTrip{{}, 1024},
                                           RoundTrip{{.hdgst = true}, 0},
                                           RoundTrip{{.hdgst = true, .ddgst = true}, 0},
                                           RoundTrip{{.hdgst = true, .ddgst = true}, kMaxCapsule},
                                           RoundTrip{{.ddgst = true, .pda = 31}, 8},
                                           RoundTrip{{.hdgst = true, .pda = 31}, 8}));

TEST(PduErrors, UnknownTypeAndTypesOfTheOtherDirection) {
  for (unsigned type = 0; type < 256; ++type) {
    CommonHeader common{.type = static_cast<std::uint8_t>(type), .hlen = 24, .plen = 24};
    Bytes bytes(sizeof common);
    write_wire(bytes, common);
    const bool for_controller = type == 0 || type == 2 || type == 4 || type == 6;
    const bool for_host = type == 1 || type == 3 || type == 5 || type == 7 || type == 9;
    if (!for_controller) expect_error(bytes, rules(Role::controller), FatalStatus::invalid_header_field, 0);
    if (!for_host) expect_error(bytes, rules(Role::host), FatalStatus::invalid_header_field, 0);
  }
}

TEST(PduErrors, HlenMustBeTheTypesOwn) {
  for (unsigned hlen = 0; hlen < 256; ++hlen) {
    if (hlen == sizeof(CapsuleCmd)) continue;
    auto bytes = encode(CapsuleCmd{});
    bytes[2] = static_cast<std::byte>(hlen);
    expect_error(bytes, rules(Role::controller), FatalStatus::invalid_header_field, 2);
  }
}

TEST(PduErrors, PlenBounds) {
  auto bytes = encode(CapsuleCmd{});
  for (const std::uint32_t plen : {0U, 8U, 71U}) {
    store_le(bytes.data() + 4, plen);
    expect_error(bytes, rules(Role::controller), FatalStatus::invalid_header_field, 4);
  }
  auto with_data = encode(CapsuleCmd{}, kMaxCapsule);
  for (const std::uint32_t plen : {72U + kMaxCapsule + 1, 0x80000000U, 0xFFFFFFFFU}) {
    store_le(with_data.data() + 4, plen);
    expect_error(with_data, rules(Role::controller), FatalStatus::invalid_header_field, 4);
  }
  auto r2t = encode(R2t{});
  store_le(r2t.data() + 4, std::uint32_t{25});
  expect_error(r2t, rules(Role::host), FatalStatus::invalid_header_field, 4);
}

TEST(PduErrors, PdoMustLieBehindTheHeaderAndBeAligned) {
  const Framing framing{.hdgst = true, .pda = 1};  // header 76, data at a multiple of 8
  const auto good = encode(CapsuleCmd{}, 512, framing);
  ASSERT_EQ(good[3], std::byte{80});
  for (unsigned pdo = 0; pdo < 256; ++pdo) {
    auto bytes = good;
    bytes.resize(255);
    bytes[3] = static_cast<std::byte>(pdo);
    // A moved PDO also shifts the length of the data: room for it keeps PLEN out of the question.
    store_le(bytes.data() + 4, std::uint32_t{1024});
    store_le(bytes.data() + 72, header_digest(std::span(bytes).first(72)));
    if (pdo >= 76 && pdo % 8 == 0) {
      EXPECT_EQ(parse_pdu(bytes, rules(Role::controller, framing)).kind, Kind::header) << pdo;
    } else {
      expect_error(bytes, rules(Role::controller, framing), FatalStatus::invalid_header_field, 3);
    }
  }
}

TEST(PduErrors, DataPdusNeedDataWithinTheLimit) {
  auto h2c = encode(data_pdu(PduType::h2c_data));
  expect_error(h2c, rules(Role::controller), FatalStatus::invalid_header_field, 4);
  h2c = encode(data_pdu(PduType::h2c_data), kMaxData);
  EXPECT_EQ(parse_pdu(h2c, rules(Role::controller)).kind, Kind::header);
  h2c = encode(data_pdu(PduType::h2c_data), kMaxData + 4);
  expect_error(h2c, rules(Role::controller), FatalStatus::data_limit_exceeded, 4);
  const auto c2h = encode(data_pdu(PduType::c2h_data), kMaxData + 4);
  expect_error(c2h, rules(Role::host), FatalStatus::data_limit_exceeded, 4);
}

TEST(PduErrors, DigestFlagsMustBeAsAgreed) {
  const Framing both{.hdgst = true, .ddgst = true};
  expect_error(encode(CapsuleCmd{}), rules(Role::controller, {.hdgst = true}),
               FatalStatus::invalid_header_field, 1);
  expect_error(encode(CapsuleCmd{}, 0, {.hdgst = true}), rules(Role::controller),
               FatalStatus::invalid_header_field, 1);
  expect_error(encode(CapsuleCmd{}, 64, {.ddgst = true}), rules(Role::controller),
               FatalStatus::invalid_header_field, 1);
  expect_error(encode(CapsuleCmd{}, 64, {.hdgst = true}), rules(Role::controller, both),
               FatalStatus::invalid_header_field, 1);
  auto empty = encode(CapsuleCmd{}, 0, {});
  empty[1] = std::byte{kPduDdgst};
  expect_error(empty, rules(Role::controller, {.ddgst = true}), FatalStatus::invalid_header_field, 1);
}

TEST(PduErrors, ReservedFlagsAndSuccessWithoutLast) {
  for (unsigned flags = 1; flags < 256; ++flags) {
    auto capsule = encode(CapsuleCmd{});
    capsule[1] = static_cast<std::byte>(flags);
    expect_error(capsule, rules(Role::controller), FatalStatus::invalid_header_field, 1);
  }
  auto pdu = data_pdu(PduType::c2h_data);
  pdu.common.flags = kPduDataSuccess;
  expect_error(encode(pdu, 64), rules(Role::host), FatalStatus::invalid_header_field, 1);
  pdu.common.flags = kPduDataSuccess | kPduLast;
  EXPECT_EQ(parse_pdu(encode(pdu, 64), rules(Role::host)).kind, Kind::header);
}

TEST(PduErrors, HeaderDigestOfEveryBitFlip) {
  const Framing framing{.hdgst = true};
  const auto good = encode(R2t{}, 0, framing);
  ASSERT_EQ(parse_pdu(good, rules(Role::host, framing)).kind, Kind::header);
  for (std::size_t bit = 8 * 8; bit < good.size() * 8; ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    expect_error(bytes, rules(Role::host, framing), FatalStatus::header_digest,
                 load_le<std::uint32_t>(bytes.data() + 24));
  }
}

TEST(PduErrors, TerminationRequestsAreBounded) {
  TermReq term;
  term.common.type = static_cast<std::uint8_t>(PduType::h2c_term_req);
  auto bytes = encode(term);
  store_le(bytes.data() + 4, std::uint32_t{24 + kTermDataMax});
  const auto result = parse_pdu(bytes, rules(Role::controller, {.hdgst = true, .ddgst = true}));
  ASSERT_EQ(result.kind, Kind::header);
  EXPECT_EQ(result.header.data, kTermDataMax);
  store_le(bytes.data() + 4, std::uint32_t{24 + kTermDataMax + 1});
  expect_error(bytes, rules(Role::controller), FatalStatus::invalid_header_field, 4);
}

// Any 8 bytes are either refused or lead to a bounded wish.
TEST(PduErrors, NoHeaderAsksForMoreThanItsBound) {
  std::uint64_t state = 1;
  for (int i = 0; i < 200000; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    Bytes bytes(8);
    store_le(bytes.data(), state);
    if (i % 2 == 0) bytes[0] = static_cast<std::byte>((state >> 40U) % 10);
    for (const auto role : {Role::controller, Role::host}) {
      const auto result = parse_pdu(bytes, rules(role, {.hdgst = (i & 4) != 0, .ddgst = (i & 8) != 0}));
      ASSERT_NE(result.kind, Kind::header);
      if (result.kind == Kind::need_more) {
        ASSERT_LE(result.need, 255U);
      }
    }
  }
}

TEST(DataDigests, AreTakenWithAndWithoutPadding) {
  const auto over = [](std::size_t bytes) {
    Crc32c crc;
    crc.update(Bytes(bytes, std::byte{7}));
    return crc;
  };
  Crc32c padded = over(5);
  padded.update(Bytes(3));
  EXPECT_EQ(padded_data_digest(over(5), 5), padded.value());
  EXPECT_EQ(judge_data_digest(over(5).value(), over(5), 5), DataDigest::plain);
  EXPECT_EQ(judge_data_digest(padded.value(), over(5), 5), DataDigest::padded);
  EXPECT_EQ(judge_data_digest(padded.value() ^ 1U, over(5), 5), DataDigest::wrong);
  EXPECT_EQ(judge_data_digest(over(8).value(), over(8), 8), DataDigest::plain);
}

}  // namespace
}  // namespace akv::nvme
