"""Model weights on this node: what is there, fetching it, and removing it without harm."""
