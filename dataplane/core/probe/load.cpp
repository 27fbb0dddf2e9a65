#include "probe/load.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "nvme/kv.hpp"
#include "nvme/status.hpp"

namespace akv::probe {
namespace {

constexpr std::size_t kMostLatencies = 1'000'000;
constexpr auto kPatience = std::chrono::seconds(10);
constexpr auto kKeepAlive = std::chrono::seconds(10);
constexpr std::uint8_t kBlockWrite = 0x01;
constexpr std::uint8_t kBlockRead = 0x02;

std::chrono::nanoseconds cpu_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// Memory for every command, all of it touched.
class Buffers {
 public:
  Buffers(std::size_t count, std::size_t each) : bytes_(count * each), each_(each) {
    memory_ =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory_ == MAP_FAILED)
      throw ProbeError("no memory for " + std::to_string(bytes_) + " bytes of buffers");
    for (std::size_t i = 0; i < bytes_; i += 64)
      static_cast<std::uint8_t*>(memory_)[i] = static_cast<std::uint8_t>(i >> 6U);
  }
  ~Buffers() { ::munmap(memory_, bytes_); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  [[nodiscard]] iovec of(std::size_t index) const noexcept {
    return {static_cast<std::byte*>(memory_) + index * each_, each_};
  }

 private:
  std::size_t bytes_;
  std::size_t each_;
  void* memory_{nullptr};
};

// Commands with their places in turn.
class Load final : private fabric::QueuePairClient {
 public:
  Load(Reactor& reactor, Target& target, const LoadConfig& config)
      : reactor_(reactor),
        config_(config),
        facts_(target.facts()),
        places_(std::max<std::uint64_t>(1, config.span_bytes / config.io_bytes)),
        buffers_(config.depth, config.io_bytes),
        begun_(config.depth),
        queue_(target.queue().hand_to(*this)) {
    for (std::uint32_t tag = config.depth; tag > 0; --tag)
      idle_.push_back(tag - 1);
  }

  // At most `count` commands until `until`; keeps going until every one is answered.
  void run(Target& target, TimePoint until, std::uint64_t count) {
    left_ = count;
    until_ = until;
    answered_ = keep_alive_ = monotonic_now();
    submit_more();
    queue_.flush();
    while (outstanding_ > 0 && !closed_) {
      reactor_.run_once(std::chrono::milliseconds(100));
      const TimePoint now = monotonic_now();
      if (now - answered_ > kPatience) throw ProbeError("a command stayed unanswered for 10 s");
      if (now - keep_alive_ > kKeepAlive) {
        keep_alive_ = now;
        target.keep_alive();
      }
    }
    if (closed_) throw ProbeError(*closed_);
  }
  [[nodiscard]] LoadResult take_result() {
    std::ranges::sort(result_.latencies_us);
    return std::move(result_);
  }

 private:
  void on_open() noexcept override {}
  void on_response(std::uint32_t tag, const fabric::Response& response) noexcept override {
    answered_ = monotonic_now();
    --outstanding_;
    reactor_.expect(-1);
    ++result_.ios;
    const bool whole = config_.op == Op::write || response.received == config_.io_bytes;
    if (response.cqe.status() != nvme::kSuccess || !whole) ++result_.errors;
    if (result_.latencies_us.size() < kMostLatencies) {
      const auto took = std::chrono::duration_cast<std::chrono::microseconds>(answered_ - begun_[tag]);
      result_.latencies_us.push_back(static_cast<std::uint32_t>(took.count()));
    }
    idle_.push_back(tag);
    // Beside the data that the target asked for meanwhile, in one system call.
    submit_more();
  }
  void on_closed(fabric::Ending /*how*/, const std::string& reason) noexcept override { closed_ = reason; }

  // As many as depth and bytes in flight allow.
  void submit_more() noexcept {
    while (!idle_.empty() && left_ > 0 && may_add()) {
      const TimePoint now = monotonic_now();
      if (now >= until_) {
        left_ = 0;
        break;
      }
      const std::uint32_t tag = idle_.back();
      idle_.pop_back();
      begun_[tag] = now;
      submit(tag);
      ++outstanding_;
      reactor_.expect(1);
      --left_;
    }
  }
  [[nodiscard]] bool may_add() const noexcept {
    const std::uint64_t bytes = (outstanding_ + std::uint64_t{1}) * config_.io_bytes;
    return config_.max_inflight_bytes == 0 || outstanding_ == 0 || bytes <= config_.max_inflight_bytes;
  }
  void submit(std::uint32_t tag) {
    const std::uint64_t place = next_++ % places_;
    const iovec vector = buffers_.of(tag);
    const bool write = config_.op == Op::write;
    fabric::Command command{
        .sqe = facts_.kind == Kind::block ? block_command(place) : kv_command(place),
        .direction = write ? fabric::Direction::to_target : fabric::Direction::from_target,
        .data = std::span(&vector, 1)};
    if (!queue_.submit(command, tag)) closed_ = "the queue takes no command";
  }
  [[nodiscard]] nvme::Sqe block_command(std::uint64_t place) const noexcept {
    const std::uint64_t block = place * (config_.io_bytes / facts_.block_bytes);
    nvme::Sqe sqe;
    sqe.opcode = config_.op == Op::write ? kBlockWrite : kBlockRead;
    sqe.nsid = facts_.nsid;
    sqe.cdw10 = static_cast<std::uint32_t>(block);
    sqe.cdw11 = static_cast<std::uint32_t>(block >> 32U);
    sqe.cdw12 = config_.io_bytes / facts_.block_bytes - 1;  // 0's based
    return sqe;
  }
  [[nodiscard]] nvme::Sqe kv_command(std::uint64_t place) const {
    const auto key = nvme::make_kv_key(std::as_bytes(std::span(&place, 1)));
    return nvme::make_kv(
        {.opcode = config_.op == Op::write ? nvme::KvOpcode::store : nvme::KvOpcode::retrieve,
         .size = config_.io_bytes,
         .key = *key},
        facts_.nsid, {});
  }

  Reactor& reactor_;
  const LoadConfig config_;
  const Facts facts_;
  const std::uint64_t places_;
  Buffers buffers_;
  std::vector<TimePoint> begun_;
  std::vector<std::uint32_t> idle_;
  std::uint64_t next_{0};
  std::uint64_t left_{0};
  std::uint64_t outstanding_{0};
  TimePoint until_{};
  TimePoint answered_{};
  TimePoint keep_alive_{};
  std::optional<std::string> closed_;
  LoadResult result_;
  fabric::QueuePair& queue_;
};

}  // namespace

LoadResult run_load(Reactor& reactor, Target& target, const LoadConfig& config) {
  Load load(reactor, target, config);
  const auto cpu = cpu_time();
  const TimePoint start = monotonic_now();
  load.run(target, start + config.duration, UINT64_MAX);
  LoadResult result = load.take_result();
  result.elapsed = monotonic_now() - start;
  result.cpu = cpu_time() - cpu;
  return result;
}

void fill(Reactor& reactor, Target& target, const LoadConfig& config) {
  LoadConfig writes = config;
  writes.op = Op::write;
  writes.depth = std::min<std::uint32_t>(config.depth, 4);
  Load load(reactor, target, writes);
  load.run(target, TimePoint::max(), std::max<std::uint64_t>(1, config.span_bytes / config.io_bytes));
  if (load.take_result().errors > 0)
    throw ProbeError("the target refuses writes, so there is nothing to read");
}

}  // namespace akv::probe
