"""The node side of the fleet: what a node has and runs, and the stream to whichever host leads."""
