"""Envoy's external-processing protocol, without a socket: frames in, frames out."""
