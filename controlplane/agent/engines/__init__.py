"""Engines on this node: versioned virtual environments, made and checked by the agent."""
