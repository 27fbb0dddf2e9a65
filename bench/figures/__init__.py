"""The figures of docs/performance.md, each by one command: `make bench WHAT=NAME`."""
