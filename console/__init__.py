"""How the project's programs look on a terminal, and how they read in a pipe.

One place decides what a table, an error or a progress bar looks like; the programs only say what
is in it.  Every function takes values and knows nothing of pickers, registries or artifacts.
On a terminal there are boxes and colours; in a pipe or a log there is plain text, one row a line,
nothing cut off.  What was read from elsewhere (names, messages) is shown with its control
characters escaped: a manifest cannot move the cursor.
"""

from console.amounts import format_bytes, format_seconds
from console.failure import EXIT_USAGE, Mistake, fail, fail_all, tell, warn
from console.progress import advancing, waiting
from console.screen import say, stderr, stdout
from console.tables import Cell, Column, Table, bad, good, plain, show

__all__ = [
    "EXIT_USAGE",
    "Cell",
    "Column",
    "Mistake",
    "Table",
    "advancing",
    "bad",
    "fail",
    "fail_all",
    "format_bytes",
    "format_seconds",
    "good",
    "plain",
    "say",
    "show",
    "stderr",
    "stdout",
    "tell",
    "waiting",
    "warn",
]
