"""The client of a gateway: KV blocks over a local socket and shared memory."""
