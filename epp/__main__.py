"""`python -m epp` is `epp`."""

from epp.cli import main

main()
