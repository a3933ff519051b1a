"""The endpoint picker: Envoy asks where to send a request, and this answers."""
