"""Inputs that once broke something, or nearly did: they are tried first, for ever.

A finding is added as a file of corpus/LAW/, by a name that says what it is.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def seeds(law: str) -> list[bytes]:
    """Return the inputs kept for a law."""
    return [file.read_bytes() for file in sorted((FOLDER / law).iterdir())]
