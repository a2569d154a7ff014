"""What tests share: servers and proxies, workloads, models, judges."""
