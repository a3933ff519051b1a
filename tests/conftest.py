"""Options of the whole suite."""

import pytest
from hypothesis import HealthCheck, settings

# How long one example takes says how busy the machine is, not whether a law holds.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--transport",
        choices=("auto", "http2", "grpcio"),
        default="auto",
        help="what serves ext_proc in tests; auto also runs each transport by itself",
    )
