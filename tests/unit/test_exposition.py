"""What engines say of themselves, as captured pages spell it, and pages gone wrong."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datastore.exposition import MAX_PAGE_BYTES, Exposition, Loras, Sample, parse, samples

# A loaded machine is slow to generate and slow to run; neither is a failure of the law.
LAW = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.25
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="27283"} 1.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters="c"} 1.8e+09
"""
OLD_VLLM = b"""\
vllm:num_requests_running{model_name="m"} 1
vllm:num_requests_waiting{model_name="m"} 2
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
"""
SGLANG = b"""\
sglang:num_running_reqs{model_name="m"} 5.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.75
sglang:cache_config_info{page_size="32",num_pages="100"} 1.0
"""
TRTLLM_SERVE = b"""\
trtllm_num_requests_waiting 4
trtllm_num_requests_running 6
trtllm_kv_cache_utilization 0.1
trtllm_kv_cache_tokens_per_block 64
trtllm_kv_cache_max_blocks 1000
"""
TRITON = b"""\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 8
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 9
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm"} 0.6
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm"} 6239
"""

PAGES = [
    ("vllm", VLLM, Exposition(7, 3, 0.25, Loras(4, ("a", "b"), ("c",)), 16, 27283)),
    ("vllm", OLD_VLLM, Exposition(2, 1, 0.5)),
    ("sglang", SGLANG, Exposition(2, 5, 0.75, None, 32, 100)),
    ("trtllm-serve", TRTLLM_SERVE, Exposition(4, 6, 0.1, None, 64, 1000)),
    ("triton-trtllm", TRITON, Exposition(8, 9, 0.6, None, 64, 6239)),
]


@pytest.mark.parametrize(("engine", "page", "expected"), PAGES)
def test_reads_each_engine(engine: str, page: bytes, expected: Exposition) -> None:
    assert expected == parse(page, engine)


@pytest.mark.parametrize(("engine", "page", "expected"), PAGES)
@pytest.mark.parametrize("label", [None, "", "some-new-engine"])
def test_recognises_an_engine_that_no_label_names(
    engine: str, page: bytes, expected: Exposition, label: str | None
) -> None:
    assert expected == parse(b"# HELP x y\npython_info 1\n" + page, label)


def test_windows_line_ends_and_timestamps_are_read() -> None:
    page = OLD_VLLM.replace(b" 2\n", b" 2 1395066363000\n").replace(b"\n", b"\r\n")

    assert Exposition(2, 1, 0.5) == parse(page)


def test_data_parallel_ranks_add_up_and_share_a_cache_average() -> None:
    page = b"""\
vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} 2
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.6
"""

    said = parse(page)
    assert said.waiting == 3
    assert said.kv_cache_utilization == pytest.approx(0.4)


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_waiting NaN",
        b"vllm:num_requests_waiting +Inf",
        b"vllm:num_requests_waiting -1",
        b"vllm:num_requests_waiting",
        b"vllm:num_requests_waiting ",
        b"vllm:num_requests_waiting{a=} 1",
        b'vllm:num_requests_waiting{a="1" 1',
        b'vllm:num_requests_waiting{a="1',
        b"vllm:num_requests_waiting two",
        b" vllm:num_requests_waiting 5",
        b"# vllm:num_requests_waiting 5",
        b"vllm:num_requests_waiting_total 5",
    ],
)
def test_what_cannot_be_read_is_left_out_and_the_rest_is_kept(line: bytes) -> None:
    assert Exposition(running=3) == parse(line + b"\nvllm:num_requests_running 3\n" + line)


def test_labels_may_hold_anything() -> None:
    page = b'm{a="x\\"} 1",b="y\\\\",c="\\n, d=",} 2\n'

    assert [Sample({"a": 'x"} 1', "b": "y\\", "c": "\n, d="}, 2.0)] == list(samples(page, "m"))


def test_a_fraction_over_one_is_one() -> None:
    assert parse(b"sglang:token_usage 1.01").kv_cache_utilization == 1


@pytest.mark.parametrize("page", [b"", b"\n", b"<html>not found</html>", b"up 1\n"])
def test_a_page_of_no_engine_says_nothing(page: bytes) -> None:
    assert parse(page, None).is_empty
    assert parse(page, "vllm").is_empty


def test_a_page_over_the_limit_is_cut() -> None:
    page = b"vllm:num_requests_running 1\n" + b"x 1\n" * (MAX_PAGE_BYTES // 4)

    assert Exposition(running=1) == parse(page + b"vllm:num_requests_waiting 1\n")


PIECES = st.sampled_from(
    [
        b"vllm:num_requests_waiting",
        b"vllm:lora_requests_info",
        b'{max_lora="',
        b'"}',
        b"{",
        b"\\",
        b" ",
        b"\n",
        b"1",
        b"9" * 400,
        b"e400",
        b"nan",
        b"\xff",
        b",",
    ]
)


@LAW
@given(st.lists(PIECES | st.binary(max_size=8), max_size=40))
def test_no_page_is_an_error(pieces: list[bytes]) -> None:
    """Whatever a server sends, reading it ends in a value whose numbers are finite."""
    said = parse(b"vllm:x 1\n" + b"".join(pieces))

    assert all(
        value is None or 0 <= value < float("inf")
        for value in (said.waiting, said.running, said.kv_cache_utilization)
    )
