"""The operator's command line of the card cluster."""
