"""The leader's side of the fleet: the agents' streams, the inventory, and the placement of shards."""
