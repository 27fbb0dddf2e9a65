"""The commands, one module a subject; `register` of each adds its own to the app."""
