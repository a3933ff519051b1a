"""What is wrong with a manifest: where, what, and what to do about it."""

import re
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Where in an object: keys of mappings and indexes of lists, from the outside in."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake.  `reason` is how an object's status condition would name it, if it has a name.

    A problem of `severity` "warning" keeps nothing from being served.
    """

    path: Path
    message: str
    fix: str = ""
    reason: str = ""
    severity: str = "error"

    def __str__(self) -> str:
        where = f"{spell(self.path)}: " if self.path else ""
        fix = f" ({self.fix})" if self.fix else ""
        return f"{where}{self.message}{fix}"


class BadManifest(Exception):
    """An object that cannot be understood, with every mistake that was found in it."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        assert problems
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems

    @property
    def message(self) -> str:
        """The first mistake."""
        return self.problems[0].message

    @property
    def path(self) -> str:
        """Where the first mistake is, such as `spec.targetModels[1].weight`."""
        return spell(self.problems[0].path)


def spell(path: Path) -> str:
    """Return a path as people write it: `spec.targetModels[1].weight`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text
