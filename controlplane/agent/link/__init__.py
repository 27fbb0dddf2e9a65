"""The stream to the leader: finding it, registering, telling, obeying."""
