"""The per-pod control process: card set to slot plan to dataplane, and the status file."""
