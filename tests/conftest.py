"""Options of the whole suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--transport",
        choices=("auto", "http2", "grpcio"),
        default="auto",
        help="what serves ext_proc in tests; auto also runs each transport by itself",
    )
