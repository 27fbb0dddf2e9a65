"""A whole card cluster on network namespaces: storage hosts, cards, gateway pods, traffic, faults."""
