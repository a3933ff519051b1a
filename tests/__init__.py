"""Every test of the project."""
