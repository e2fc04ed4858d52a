"""Automatic failover of a broker group over etcd; see docs/failover.md."""
