"""Tests of the core: no sockets, no sleeps."""
