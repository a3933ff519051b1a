"""Manifests, and what checks them offline."""
