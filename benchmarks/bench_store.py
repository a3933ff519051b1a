"""What the datastore costs, and how that grows: no sockets, no files.

Each figure is the best of several rounds: what the code costs, not what else the machine was doing.
Run alone with `python -m benchmarks.bench_store`.
"""

import gc
import time
from collections.abc import Callable
from typing import Any

from datastore.events import Kind, Replaced, Upserted
from datastore.exposition import parse
from datastore.model import (
    Backend,
    InferenceModel,
    InferencePool,
    ObjectName,
    TargetModel,
)
from datastore.store import Store

Figure = dict[str, Any]
"""`name`, `n` (what grows), `value` and `unit`."""

ROUNDS = 5
POOL = ObjectName("default", "pool-0")


def run() -> list[Figure]:
    """Return every figure of this file."""
    return [
        *look_up(),
        *model_update(),
        *backend_update(),
        *view_rebuild(),
        *relist(),
        *scrape_page(),
    ]


def look_up(sizes: tuple[int, ...] = (10, 1_000, 100_000)) -> list[Figure]:
    """Look a model up by a name made for the purpose, as a request does."""
    figures = []
    for size in sizes:
        store = _store_of_models(size)
        names = [f"model-{i * size // 10}" for i in range(10)]

        def step(store: Store = store, names: list[str] = names) -> None:
            for name in names:
                store.model(ObjectName("default", name))

        figures.append(_figure("look-up among n models", size, _best(step, 1_000) / 10))
    return figures


def model_update(sizes: tuple[int, ...] = (10, 1_000, 100_000)) -> list[Figure]:
    """Change one model among many."""
    figures = []
    for size in sizes:
        store = _store_of_models(size)
        pair = [_model(0, generation) for generation in (1, 2)]

        def step(store: Store = store, pair: list[InferenceModel] = pair) -> None:
            for model in pair:
                store.apply((Upserted(model),))

        figures.append(_figure("change of one model among n", size, _best(step, 500) / 2))
    return figures


def backend_update(sizes: tuple[int, ...] = (100, 1_000, 10_000), pools: int = 50) -> list[Figure]:
    """Make one backend among many unready and ready again, with fifty pools."""
    figures = []
    for size in sizes:
        store = _store_of_backends(size, pools)
        pair = [_backend(0, pools, ready=ready) for ready in (False, True)]

        def step(store: Store = store, pair: list[Backend] = pair) -> None:
            for backend in pair:
                store.apply((Upserted(backend),))

        name = f"change of one backend among n, {pools} pools"
        figures.append(_figure(name, size, _best(step, 500) / 2))
    return figures


def view_rebuild(sizes: tuple[int, ...] = (10, 100, 1_000)) -> list[Figure]:
    """Change one endpoint and take the pool's view, then take it again unchanged."""
    figures = []
    for size in sizes:
        store = _store_of_backends(size, 1)
        pair = [_backend(0, 1, ready=ready) for ready in (False, True)]

        def change(store: Store = store, pair: list[Backend] = pair) -> None:
            for backend in pair:
                store.apply((Upserted(backend),))
                store.pool(POOL)

        def again(store: Store = store) -> None:
            store.pool(POOL)

        figures.append(_figure("view after a change, n endpoints", size, _best(change, 50) / 2))
        figures.append(_figure("view, unchanged, n endpoints", size, _best(again, 5_000)))
    return figures


def relist(size: int = 100_000) -> list[Figure]:
    """Hear of every model at once: for the first time, and again."""
    models = [_model(i, 1) for i in range(size)]
    store = Store()
    first = _time(lambda: store.apply((Replaced(Kind.MODEL, models),)))
    again = _time(lambda: store.apply((Replaced(Kind.MODEL, models),)))
    return [
        _figure("first list of n models", size, first),
        _figure("the same list again", size, again),
    ]


def scrape_page(sizes: tuple[int, ...] = (10, 100, 1_000)) -> list[Figure]:
    """Read a vLLM metrics page that has n histogram lines besides what matters."""
    figures = []
    for size in sizes:
        noise = "".join(
            f'vllm:request_prompt_tokens_bucket{{le="{i}",model_name="m"}} {i}.0\n'
            for i in range(size)
        )
        page = (
            f'{noise}vllm:num_requests_waiting{{model_name="m"}} 1.0\n'
            f'vllm:num_requests_running{{model_name="m"}} 2.0\n{noise}'
            'vllm:kv_cache_usage_perc{model_name="m"} 0.5\n'
        ).encode()
        figures.append(
            _figure("read a page of 2n lines", size, _best(lambda p=page: parse(p, "vllm"), 50))  # type: ignore[misc] # a default argument has no type here
        )
    return figures


def _store_of_models(size: int) -> Store:
    store = Store()
    store.apply([Upserted(_model(i, 1)) for i in range(size)])
    return store


def _store_of_backends(size: int, pools: int) -> Store:
    store = Store()
    store.apply(
        [
            Upserted(
                InferencePool(
                    ObjectName("default", f"pool-{i}"),
                    (("app", f"app-{i}"), ("tier", "gpu")),
                    (8000,),
                )
            )
            for i in range(pools)
        ]
    )
    store.apply([Upserted(_backend(i, pools, ready=True)) for i in range(size)])
    store.pools()
    return store


def _model(index: int, generation: int) -> InferenceModel:
    return InferenceModel(
        name=ObjectName("default", f"model-{index}"),
        pool=POOL,
        targets=(TargetModel("a", 3), TargetModel("b", 1)),
        cumulative=(3, 4),
        generation=generation,
    )


def _backend(index: int, pools: int, *, ready: bool) -> Backend:
    labels = {f"label-{i}": "value" for i in range(8)}
    return Backend(
        name=ObjectName("default", f"pod-{index}"),
        uid=f"uid-{index}",
        address=f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}",
        ready=ready,
        labels=labels | {"app": f"app-{index % pools}", "tier": "gpu"},
    )


def _figure(name: str, n: int, seconds: float) -> Figure:
    return {"name": name, "n": n, "value": round(seconds * 1e6, 3), "unit": "µs"}


def _best(step: Callable[[], object], count: int) -> float:
    """Return the seconds that one step takes, in the best of some rounds."""
    return min(_time(lambda: [step() for _ in range(count)]) for _ in range(ROUNDS)) / count


def _time(action: Callable[[], object]) -> float:
    gc.collect()
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


if __name__ == "__main__":
    for figure in run():
        print(f"{figure['name']:45} n={figure['n']:>7} {figure['value']:>12} {figure['unit']}")
