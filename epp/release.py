"""Which build of the picker this is."""

from importlib.metadata import PackageNotFoundError, version

NAME = "inference-epp"


def release() -> str:
    """Return the installed version, or `0+source` in a checkout that is not installed."""
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "0+source"
