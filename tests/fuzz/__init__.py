"""Odd input of every kind, made by Hypothesis: short in `make test`, long in `make fuzz`."""
