// Options of a TCP socket between a host and a card, on either side.
#pragma once

namespace akv {

// Small PDUs leave at once. Where BBR is the machine's congestion control, CUBIC is taken instead (Reno where
// that is not to be had): BBR paces what is sent by timers, which on short ways cost more than they save
// (docs/decisions/0017-no-pacing.md). Any other choice of the machine is kept.
void set_card_socket_options(int fd) noexcept;

}  // namespace akv
