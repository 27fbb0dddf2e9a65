"""The control plane: cluster service, gateway control process, exporters and their shared domain model."""
