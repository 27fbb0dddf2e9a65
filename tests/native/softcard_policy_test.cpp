// Which pairs a full card keeps, beside an exact LRU of the same size: on dialogs that grow and are taken up
// again, and on the rows of a trace (`python -m bench.rows > FILE`) where AKV_POLICY_ROWS names them.
#include <cstdlib>
#include <iostream>
#include <list>
#include <map>
#include <sstream>

#include "softcard/memory_store.hpp"
#include "softcard_support.hpp"

namespace akv::softcard {
namespace {

constexpr std::size_t kCards = 4;
constexpr std::uint32_t kValueBytes = 16;

struct Row {
  std::size_t card{0};
  std::vector<std::uint64_t> blocks;
};

nvme::KvKey block_key(std::uint64_t block) {
  const std::uint64_t words[2] = {block * 0x9E3779B97F4A7C15U, block};
  return *nvme::make_kv_key(std::as_bytes(std::span(words)));
}

// One cache of all the blocks, exactly least recently used first.
class Lru {
 public:
  explicit Lru(std::size_t size) : size_(size) {}

  std::size_t serve(const Row& row) {
    std::size_t matched = 0;
    while (matched < row.blocks.size() && places_.contains(row.blocks[matched]))
      ++matched;
    for (const auto block : row.blocks)
      touch(block);
    return matched;
  }

 private:
  void touch(std::uint64_t block) {
    if (const auto found = places_.find(block); found != places_.end()) {
      order_.erase(found->second);
    } else if (places_.size() == size_) {
      places_.erase(order_.front());
      order_.pop_front();
    }
    places_[block] = order_.insert(order_.end(), block);
  }

  std::size_t size_;
  std::list<std::uint64_t> order_;
  std::map<std::uint64_t, std::list<std::uint64_t>::iterator> places_;
};

// As a gateway does: the longest prefix is looked up and retrieved, the rest stored.
std::size_t serve(Store& store, const Row& row) {
  static const Value stored = test::value_of(kValueBytes, 1);
  std::size_t matched = 0;
  while (matched < row.blocks.size() && store.contains(block_key(row.blocks[matched])))
    ++matched;
  for (std::size_t i = 0; i < row.blocks.size(); ++i) {
    Value value;
    const auto key = block_key(row.blocks[i]);
    const auto status = i < matched ? store.get(key, value) : store.put(key, stored);
    EXPECT_EQ(status, nvme::kSuccess);
  }
  return matched;
}

struct Hits {
  std::size_t card{0};
  std::size_t lru{0};
  std::size_t all{0};
};

Hits replay(const std::vector<Row>& rows, std::size_t blocks) {
  std::vector<std::unique_ptr<MemoryStore>> cards;
  for (std::size_t i = 0; i < kCards; ++i)
    cards.push_back(std::make_unique<MemoryStore>(blocks / kCards * (kValueBytes + MemoryStore::kPairBytes),
                                                  kValueBytes));
  Lru lru(blocks);
  Hits hits;
  for (const auto& row : rows) {
    hits.card += serve(*cards[row.card], row);
    hits.lru += lru.serve(row);
    hits.all += row.blocks.size();
  }
  return hits;
}

TEST(Policy, KeepsDialogsThatAreTakenUpAgain) {
  std::mt19937 source(11);
  std::vector<Row> rows;
  std::vector<Row> dialogs;
  std::uint64_t next_block = 0;
  for (int request = 0; request < 6000; ++request) {
    const bool fresh = dialogs.empty() || source() % 3 == 0;
    if (fresh) dialogs.push_back({source() % kCards, {}});
    // Of those that go on, most were active lately.
    const auto reach = fresh ? 1 : 1 + source() % std::min<std::size_t>(dialogs.size(), 800);
    const auto back = source() % reach;
    auto& dialog = dialogs[dialogs.size() - 1 - back];
    for (auto more = 1 + source() % 12; more > 0; --more)
      dialog.blocks.push_back(next_block++);
    rows.push_back(dialog);
  }
  const auto hits = replay(rows, 4000);
  EXPECT_GT(hits.lru, hits.all / 10) << "the trace has something to hit";
  // The cards are four, each with its own bound: room of one is no help to the dialogs of another.
  EXPECT_GE(hits.card * 100, hits.lru * 97) << hits.card << " of " << hits.all << ", exact LRU " << hits.lru;
}

TEST(Policy, OnATraceItHitsAsOftenAsExactLru) {
  const char* const name = std::getenv("AKV_POLICY_ROWS");
  if (name == nullptr) GTEST_SKIP() << "AKV_POLICY_ROWS names no rows";
  std::ifstream in(name);
  std::vector<Row> rows;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    auto& row = rows.emplace_back();
    words >> row.card;
    for (std::uint64_t block = 0; words >> block;)
      row.blocks.push_back(block);
    ASSERT_LT(row.card, kCards);
  }
  ASSERT_FALSE(rows.empty());
  const auto hits = replay(rows, 10'000);
  std::cout << "cards " << hits.card << ", exact LRU " << hits.lru << ", of " << hits.all << " blocks\n";
  EXPECT_GE(hits.card, hits.lru);
}

}  // namespace
}  // namespace akv::softcard
