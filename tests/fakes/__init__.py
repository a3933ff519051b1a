"""Stand-ins that speak the real protocols over real sockets."""
