"""Shards: engine processes that outlive the agent, each under a holder process of its own."""
