"""Measures the picker: without sockets, under h2load, and through a real Envoy.

Absolute times drift from machine to machine and from minute to minute; the ratios, each taken
within one run, are what to compare.
"""
