"""The cluster service: etcd member, card discovery, leader, health and the API on :5000."""
