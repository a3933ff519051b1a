"""What is wrong with a set of manifests, all of it, before anything serves them.

Reads them exactly as the standalone source does, and then looks at what only shows between objects:
a model without its pool, a pool without endpoints.  What would keep a file from being served, or a
model from being found, is an error; what is merely odd is a warning.
"""

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from datastore.events import Upserted
from datastore.folder import Folder
from datastore.model import Backend, InferenceModel, InferencePool, ObjectName
from datastore.problems import Problem
from datastore.reading import Collected, Finding, Loaded, Manifests, collect
from datastore.store import Store

EXIT_ERRORS = 2


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found, in the order of files and lines.

    `counts` says how many objects of each kind there are; `unread` where a kind that nothing here
    reads was first seen.
    """

    findings: tuple[Finding, ...]
    files: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that keep something from being served."""
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are merely odd."""
        return tuple(f for f in self.findings if f.severity != "error")

    @property
    def exit_code(self) -> int:
        """What a program that checks should exit with."""
        return EXIT_ERRORS if self.errors else 0


def check_paths(paths: Sequence[Path], namespace: str = "default") -> Report:
    """Check files and folders together; `namespace` is where objects belong that do not say."""
    texts: dict[Path, Manifests] = {}
    findings: list[Finding] = []
    for path in paths:
        try:
            found = Folder(path, namespace, lint=True).read()[1]
        except OSError as error:
            findings.append(
                Finding(str(path), 0, "", f"cannot be read: {error.strerror}", "check the path")
            )
            continue
        if not found:
            findings.append(
                _warning(str(path), "holds no .yaml, .yml or .json file", "check the path")
            )
        for text in found:
            texts.setdefault(Path(text.file).resolve(), text)
    return _report(list(texts.values()), findings)


def _report(texts: Sequence[Manifests], findings: list[Finding]) -> Report:
    collected = collect(texts)
    findings += collected.findings
    findings += (
        _warning(text.file, "holds no object", "")
        for text in texts
        if not (text.objects or text.findings or text.unread)
    )
    findings += _between_objects(collected)
    unread: dict[str, str] = {}
    for text in texts:
        for kind, line in text.unread.items():
            unread.setdefault(kind, f"{text.file}:{line}")
    return Report(
        findings=tuple(sorted(dict.fromkeys(findings), key=lambda f: (f.file, f.line))),
        files=len(texts),
        counts=Counter(loaded.decoded.resource.kind for loaded in collected.objects.values()),
        unread=unread,
    )


def _warning(file: str, message: str, fix: str) -> Finding:
    return Finding(file, 0, "", message, fix, severity="warning")


def _between_objects(collected: Collected) -> Iterator[Finding]:
    """Find what only shows when all objects are there."""
    store = Store()
    store.apply(Upserted(value, getattr(value, "group", "")) for value in collected.values())
    checks: Sequence[Callable[[Loaded, Store], Iterable[Problem]]] = (
        _model_name_problems,
        _pool_ref_problems,
        _pin_problems,
        _pool_problems,
        _backend_problems,
    )
    for loaded in collected.objects.values():
        for check in checks:
            yield from (loaded.finding(problem) for problem in check(loaded, store))
    yield from _lookalikes(collected)


def _model_name_problems(loaded: Loaded, _store: Store) -> Iterator[Problem]:
    for model in _models(loaded):
        old = model.deprecated_model_name
        if old is not None and old != model.name.name:
            yield Problem(
                ("spec", "modelName"),
                f"is ignored: clients ask for {model.name.name!r}, not for {old!r}",
                f"remove it; if the servers know the model as {old!r}, make it a target",
                severity="warning",
            )


def _pool_ref_problems(loaded: Loaded, store: Store) -> Iterator[Problem]:
    for model in _models(loaded):
        if model.invalid_reason == "UnsupportedPoolRef" or store.pool(model.pool) is not None:
            continue
        names = store.pool_names()
        yield Problem(
            ("spec", "poolRef", "name"),
            f"there is no InferencePool {model.pool}",
            _which_pool(model.pool, names),
            # Without any pool these are probably the models only, and the pools are elsewhere.
            severity="error" if names else "warning",
        )


def _which_pool(wanted: ObjectName, names: Sequence[ObjectName]) -> str:
    for name in names:
        if name.name == wanted.name:
            return f"there is one in namespace {name.namespace}; it must be in the model's own"
    here = [name.name for name in names if name.namespace == wanted.namespace]
    close = difflib.get_close_matches(wanted.name, here, 1)
    return f"did you mean {close[0]}?" if close else "add it, or correct the name"


def _pin_problems(loaded: Loaded, store: Store) -> Iterator[Problem]:
    """Find targets that are pinned to bytes which no endpoint of the pool says it serves."""
    for model in _models(loaded):
        view = store.pool(model.pool)
        endpoints = view.endpoints if view is not None else ()
        served = {endpoint.artifact_digest for endpoint in endpoints}
        for index, target in enumerate(model.targets):
            if endpoints and target.artifact_digest not in {None, *served}:
                yield Problem(
                    ("spec", "targetModels", index, "artifactDigest"),
                    f"no endpoint of {model.pool} says that it serves these bytes",
                    "requests for this target will be refused until one does",
                    severity="warning",
                )


def _pool_problems(loaded: Loaded, store: Store) -> Iterator[Problem]:
    for pool in loaded.decoded.values:
        view = store.pool(pool.name)
        if not isinstance(pool, InferencePool) or view is None or pool.invalid is not None:
            continue
        if view.pool.group != pool.group:
            yield Problem(
                ("apiVersion",),
                f"is ignored: a pool of the same name in {view.pool.group} wins",
                "remove one of them",
                severity="warning",
            )
        elif not view.endpoints:
            labels = ", ".join(f"{key}={value}" for key, value in pool.selector)
            yield Problem(
                ("spec", "selector"),
                f"no ready Pod or EndpointSlice here has the labels {labels}",
                f"add one to namespace {pool.name.namespace}, unless they come from a cluster",
                severity="warning",
            )


def _backend_problems(loaded: Loaded, store: Store) -> Iterator[Problem]:
    """Find endpoints that no pool selects, so that nothing is ever sent to them."""
    backends = [value for value in loaded.decoded.values if isinstance(value, Backend)]
    if not backends or not store.pool_names():
        return
    labels = backends[0].labels
    for name in store.pool_names():
        view = store.pool(name)
        if view is None or name.namespace != backends[0].name.namespace:
            continue
        selector = view.pool.selector
        if selector and all(labels.get(key) == value for key, value in selector):
            return
    yield Problem(
        ("metadata", "labels"),
        "no InferencePool of this namespace selects these labels",
        "correct the labels, or the pool's selector",
        severity="warning",
    )


def _lookalikes(collected: Collected) -> Iterator[Finding]:
    """Find models whose names a person would take for the same."""
    seen: dict[tuple[str, str], Loaded] = {}
    for loaded in collected.objects.values():
        for model in _models(loaded):
            alike = model.name.name.replace(".", "").replace("-", "")
            first = seen.setdefault((model.name.namespace, alike), loaded)
            if first is not loaded:
                yield loaded.finding(
                    Problem(
                        ("metadata", "name"),
                        f"differs from {first.decoded.name.name} only in its dots and hyphens",
                        "make sure that both are meant",
                        severity="warning",
                    )
                )


def _models(loaded: Loaded) -> Iterator[InferenceModel]:
    return (value for value in loaded.decoded.values if isinstance(value, InferenceModel))
