"""The etcd client and the record-to-key schema; the one place that knows etcd."""
