"""The wire messages: our own small subsets of Envoy's ext_proc and of gRPC health checking."""
