"""What a model server says about itself on /metrics, read without reading all of it.

A page of vLLM has a thousand lines, of which five matter; this runs for every endpoint several
times a second.  So the text is searched for the few names that an engine uses, and only those lines
are read.  What is missing, unreadable or not a number is left out, never an error: a page that says
one thing of use is of use.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

ENGINE_LABEL = "inference.networking.k8s.io/engine-type"

MAX_PAGE_BYTES = 4 * 1024 * 1024
"""The largest page that is read; what comes after is left out.  vLLM's is about 100 KB."""


@dataclass(frozen=True, slots=True)
class Loras:
    """The adapters that an engine has in use, and how many it can hold at once."""

    maximum: int
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exposition:
    """What one page said; None = it did not say.

    `kv_cache_utilization` is 0…1.  `cache_block_size` is in tokens.
    """

    waiting: float | None = None
    running: float | None = None
    kv_cache_utilization: float | None = None
    loras: Loras | None = None
    cache_block_size: int | None = None
    cache_block_count: int | None = None

    @property
    def is_empty(self) -> bool:
        """Tell whether the page said nothing about the load."""
        return self.waiting is None and self.running is None and self.kv_cache_utilization is None


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: its labels and its value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Metric:
    """Where to find a number: one of some names, with these labels.

    `label` says that the number is that label's value instead of the sample's.
    """

    names: tuple[str, ...]
    matching: tuple[tuple[str, str], ...] = ()
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """How one kind of model server spells what we want to know."""

    waiting: Metric
    running: Metric
    kv_cache: Metric
    block_size: Metric
    block_count: Metric
    loras: str | None = None


_TRITON_REQUESTS = "nv_trt_llm_request_metrics"
_TRITON_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"

ENGINES: Mapping[str, Engine] = {
    "vllm": Engine(
        waiting=Metric(("vllm:num_requests_waiting",)),
        running=Metric(("vllm:num_requests_running",)),
        kv_cache=Metric(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
        block_size=Metric(("vllm:cache_config_info",), label="block_size"),
        block_count=Metric(("vllm:cache_config_info",), label="num_gpu_blocks"),
        loras="vllm:lora_requests_info",
    ),
    "sglang": Engine(
        waiting=Metric(("sglang:num_queue_reqs",)),
        running=Metric(("sglang:num_running_reqs",)),
        kv_cache=Metric(("sglang:token_usage",)),
        block_size=Metric(("sglang:cache_config_info",), label="page_size"),
        block_count=Metric(("sglang:cache_config_info",), label="num_pages"),
    ),
    "trtllm-serve": Engine(
        waiting=Metric(("trtllm_num_requests_waiting",)),
        running=Metric(("trtllm_num_requests_running",)),
        kv_cache=Metric(("trtllm_kv_cache_utilization",)),
        block_size=Metric(("trtllm_kv_cache_tokens_per_block",)),
        block_count=Metric(("trtllm_kv_cache_max_blocks",)),
    ),
    "triton-trtllm": Engine(
        waiting=Metric((_TRITON_REQUESTS,), (("request_type", "waiting"),)),
        running=Metric((_TRITON_REQUESTS,), (("request_type", "scheduled"),)),
        kv_cache=Metric((_TRITON_BLOCKS,), (("kv_cache_block_type", "fraction"),)),
        block_size=Metric((_TRITON_BLOCKS,), (("kv_cache_block_type", "tokens_per"),)),
        block_count=Metric((_TRITON_BLOCKS,), (("kv_cache_block_type", "max"),)),
    ),
}

_PREFIXES = {
    "vllm": b"vllm:",
    "sglang": b"sglang:",
    "trtllm-serve": b"trtllm_",
    "triton-trtllm": b"nv_trt_llm_",
}


def parse(page: bytes, engine: str | None = None) -> Exposition:
    """Read a page of this engine; of an engine that is not known, whichever it turns out to be."""
    page = page[:MAX_PAGE_BYTES]
    name = engine if engine in ENGINES else recognise(page)
    if name is None:
        return Exposition()
    spelled = ENGINES[name]
    return Exposition(
        waiting=_number(page, spelled.waiting, sum),
        running=_number(page, spelled.running, sum),
        kv_cache_utilization=_fraction(_number(page, spelled.kv_cache, _mean)),
        loras=_loras(page, spelled.loras) if spelled.loras is not None else None,
        cache_block_size=_whole(_number(page, spelled.block_size, max)),
        cache_block_count=_whole(_number(page, spelled.block_count, sum)),
    )


def recognise(page: bytes) -> str | None:
    """Return the engine whose metrics the page has, if any."""
    for name, prefix in _PREFIXES.items():
        if page.startswith(prefix) or b"\n" + prefix in page:
            return name
    return None


def samples(page: bytes, name: str) -> Iterator[Sample]:
    """Yield the samples of exactly this metric; lines that cannot be read are passed over."""
    wanted = name.encode()
    start = 0
    while (at := page.find(wanted, start)) >= 0:
        end = page.find(b"\n", at)
        line = page[at:] if end < 0 else page[at:end]
        start = len(page) if end < 0 else end
        if (at == 0 or page[at - 1] == 0x0A) and (sample := _sample(line, len(wanted))):
            yield sample


_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE = re.compile(r"\\(.)")


def _sample(line: bytes, name_length: int) -> Sample | None:
    rest = line[name_length:].decode("utf-8", "replace").strip()
    labels: dict[str, str] = {}
    if rest.startswith("{"):
        position = 1
        while match := _LABEL.match(rest, position):
            labels[match[1]] = _ESCAPE.sub(_unescape, match[2])
            position = match.end()
        if rest[position : position + 1] != "}":
            return None
        rest = rest[position + 1 :]
    elif line[name_length : name_length + 1] not in (b" ", b"\t"):
        return None  # a longer name that begins with this one
    words = rest.split(None, 1)
    value = _float(words[0]) if words else None
    return None if value is None else Sample(labels, value)


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _float(text: str) -> float | None:
    """Return a number, or None for what is none, infinity included."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _number(page: bytes, metric: Metric, combine: Callable[[list[float]], float]) -> float | None:
    """Return the metric's value; one server with several series (data-parallel ranks) is one."""
    for name in metric.names:
        values = [
            value
            for sample in samples(page, name)
            if all(sample.labels.get(key) == want for key, want in metric.matching)
            and (value := _value(sample, metric.label)) is not None
            and value >= 0
        ]
        if values:
            return combine(values)
    return None


def _value(sample: Sample, label: str | None) -> float | None:
    return sample.value if label is None else _float(sample.labels.get(label, ""))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _fraction(value: float | None) -> float | None:
    return None if value is None else min(value, 1.0)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _loras(page: bytes, name: str) -> Loras | None:
    """Return the adapters; of several series the newest counts, and its value is its time."""
    newest = max(samples(page, name), key=lambda sample: sample.value, default=None)
    maximum = _float(newest.labels.get("max_lora", "")) if newest is not None else None
    if newest is None or maximum is None:
        return None
    return Loras(
        int(maximum),
        _names(newest.labels.get("running_lora_adapters", "")),
        _names(newest.labels.get("waiting_lora_adapters", "")),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))
