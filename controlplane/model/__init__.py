"""Pure domain of the card cluster: cards, health, slot plan, routing, debouncing. No I/O, no clocks."""
