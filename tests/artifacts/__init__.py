"""Pins, locks and pulls against a real S3 API: moto, or the server that S3_ENDPOINT names."""
