// One worker's I/O queue pair of one card: flow control, deadlines, quarantine of buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/reactor.hpp"
#include "card/bring_up.hpp"
#include "card/counters.hpp"
#include "card/entry_table.hpp"
#include "card/io.hpp"
#include "fabric/tcp_queue_pair.hpp"

namespace akv::card {

class NvmeCard;

// What the controller tells a queue to connect to.
struct QueueOrder {
  std::uint64_t generation{0};
  std::uint16_t qid{1};
  ControllerFacts facts;
  fabric::TcpAddress address;
};

// Lives as long as its card; connects anew with every order. Used on its worker's thread alone.
class NvmeIoQueue final : public IoQueue, private fabric::QueuePairClient {
 public:
  NvmeIoQueue(NvmeCard& card, std::size_t worker);

  [[nodiscard]] bool ready() const noexcept override;
  [[nodiscard]] bool submit(IoRequest& request) noexcept override;
  [[nodiscard]] std::uint32_t max_value_bytes() const noexcept override { return facts_.max_value_bytes; }
  [[nodiscard]] std::uint32_t inflight() const noexcept override {
    return static_cast<std::uint32_t>(counters_.inflight.get());
  }
  void report_corrupt() noexcept override;
  [[nodiscard]] const QueueCounters& counters() const noexcept { return counters_; }

  // By the controller. The controller hears of the outcome through its on_queue_open() or on_queue_lost().
  void open(const QueueOrder& order);
  // By the controller; afterwards every request is completed and released, and the socket is closed.
  void close(const std::string& reason) noexcept;

 private:
  enum class State : std::uint8_t { idle, connecting, open };

  void on_open() noexcept override;
  void on_arrived(std::uint32_t tag, std::uint32_t bytes) noexcept override;
  void on_response(std::uint32_t tag, const fabric::Response& response) noexcept override;
  void on_closed(fabric::Ending how, const std::string& reason) noexcept override;

  void on_connected(const fabric::Response& response) noexcept;
  void dispatch() noexcept;
  void dispatch_later() noexcept;
  [[nodiscard]] bool send_next(std::uint64_t& prepared) noexcept;
  [[nodiscard]] bool prepare_behind(const Entry& entry) noexcept;
  [[nodiscard]] fabric::Command command_for(const IoRequest& request, std::uint32_t bytes) const noexcept;
  [[nodiscard]] IoResult judge(const Entry& entry, const fabric::Response& response) const noexcept;
  void finish(std::uint32_t index, const IoResult& result) noexcept;
  void on_timer() noexcept;
  [[nodiscard]] bool stood_still(TimePoint now) noexcept;
  [[nodiscard]] TimePoint earliest_deadline() noexcept;
  void time_out(std::uint32_t index, TimePoint now) noexcept;
  void ask_for_abort(std::uint32_t index) noexcept;
  void arm_timer() noexcept;
  void take_out_of_service(const std::string& reason) noexcept;
  void note(const Entry& entry, const fabric::Response& response, const IoResult& result) noexcept;
  void drop_queue_pair() noexcept;
  void disconnect_all() noexcept;
  void report_lost(const std::string& reason) noexcept;

  NvmeCard& card_;
  const std::size_t worker_;
  Reactor& reactor_;
  State state_{State::idle};
  bool ordered_close_{false};
  Trouble trouble_{Trouble::none};  // why it closes; refused: the controller answered Connect with an error
  std::uint64_t generation_{0};
  std::uint16_t qid_{1};
  ControllerFacts facts_;
  nvme::ConnectData connect_data_{};
  std::shared_ptr<fabric::QueuePair> queue_pair_;
  EntryTable entries_;
  std::uint32_t next_to_send_{kNoEntry};
  std::uint64_t bytes_on_wire_{0};
  QueueCounters counters_;
  TimerId timer_{0};
  TimePoint timer_due_{};
  TimePoint judged_from_{};     // no deadline is judged before
  bool listened_again_{false};  // after this worker stood still, and no answer came since
  AfterEvent dispatch_;
  TimerId later_{0};
};

}  // namespace akv::card
