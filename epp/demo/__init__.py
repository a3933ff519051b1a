"""The demo: simulated model servers, a real Envoy, the picker, and traffic that proves a pick."""
