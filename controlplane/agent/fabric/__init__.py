"""Looking at fabrics and measuring them, when the leader asks."""
