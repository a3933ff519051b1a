"""Options of the whole suite."""

import pytest
from hypothesis import HealthCheck, settings

# How long one example takes says how busy the machine is, not whether a law holds.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A gate must not fail on one run and pass on the next: new examples are what `make fuzz` is for.
settings.register_profile("suite", _PATIENT, derandomize=True, database=None)
settings.register_profile("fuzz", _PATIENT, max_examples=5_000)
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--transport",
        choices=("auto", "http2", "grpcio"),
        default="auto",
        help="what serves ext_proc in tests; auto also runs each transport by itself",
    )
