"""Python shell of the dataplane process: configuration, pinning and the gRPC servicer."""
