"""One module for each cache that is measured; each runs in the virtual environment that has its client."""
