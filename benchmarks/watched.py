"""`epp serve` with a stopwatch on the garbage collector.

`python -m benchmarks.watched FILE serve …`: FILE gets the collector's pauses in
milliseconds, as JSON, when the picker has ended.
"""

import atexit
import gc
import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Serve."""
    file = Path(sys.argv.pop(1))
    pauses: list[tuple[int, float]] = []
    begun = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.thread_time()  # how long it ran, not how long it waited for the core
        else:
            pauses.append((info["generation"], (time.thread_time() - begun) * 1000))

    def write() -> None:
        file.write_text(json.dumps(pauses))

    atexit.register(write)
    gc.callbacks.append(watch)
    # Those of the start are not the traffic's.
    from epp import app
    from epp.cli import main as serve

    settle = app._settle_garbage_collector

    def settled() -> None:
        settle()
        pauses.clear()

    app._settle_garbage_collector = settled
    serve()


if __name__ == "__main__":
    main()
