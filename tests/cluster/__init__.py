"""How the picker follows a cluster.

Every test runs against the API server of `tests/fakes`; those that need no faults also run against
any real one: `make test-cluster KUBECONFIG=...`.
"""
