"""Tests over real sockets on this machine."""
