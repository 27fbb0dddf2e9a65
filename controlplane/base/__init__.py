"""Settings, logging, backoff and addresses, shared by every program."""
