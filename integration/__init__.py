"""What installs into an engine's environment: the local client and the connectors."""
