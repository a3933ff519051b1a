"""Messages and conversations as bytes, with Envoy's own API on the other side."""
