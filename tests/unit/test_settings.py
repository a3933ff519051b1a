"""Settings: every spelling that people use, every mistake at once, one table behind it all."""

from contextlib import suppress
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp import kinds
from epp.flags import Setting, canonical
from epp.foreign import FOREIGN
from epp.settings import TABLE, InvalidSettings, Settings


def mistakes(*args: str, **env: str) -> list[str]:
    with pytest.raises(InvalidSettings) as info:
        Settings.parse(args, env)
    return [str(mistake) for mistake in info.value.mistakes]


def test_defaults_are_the_reference_s_where_it_has_them() -> None:
    settings = Settings.parse()

    assert settings.grpc_port == 9002
    assert settings.grpc_health_port == 9003
    assert settings.metrics_port == 9090
    assert settings.secure_serving
    assert settings.pool_namespace == "default"
    assert settings.metrics_staleness_threshold_s == 2.0
    assert settings.max_request_body_bytes == 16 * 1024 * 1024
    assert settings == Settings()


def test_every_field_but_the_warnings_is_a_row_of_the_table() -> None:
    assert {row.name for row in TABLE} == {f.name for f in fields(Settings)} - {"warnings"}
    assert len({row.flag for row in TABLE}) == len(TABLE)


SHOWN = [row for row in TABLE if row.kind.show(row.default) != "unset"]


@pytest.mark.parametrize("row", SHOWN, ids=lambda row: row.flag)
def test_a_default_reads_back_as_itself(row: Setting) -> None:
    """What --help and the docs show as a default can be typed."""
    assert row.default == row.kind.parse(row.kind.show(row.default))


def test_names_carry_their_unit() -> None:
    durations = [row.name for row in TABLE if "DURATION" in row.kind.metavar]
    sizes = [row.name for row in TABLE if row.kind.metavar == "SIZE"]

    assert len(durations) > 1
    assert len(sizes) > 1
    assert [name for name in durations if not name.endswith("_s")] == []
    assert [name for name in sizes if not name.endswith("_bytes")] == []


@pytest.mark.parametrize(
    ("args", "name", "expected"),
    [
        (["--grpc-port", "7"], "grpc_port", 7),
        (["--grpc-port=7"], "grpc_port", 7),
        (["-grpcPort", "7"], "grpc_port", 7),
        (["--grpcPort=7"], "grpc_port", 7),
        (["--grpc_port=7"], "grpc_port", 7),
        (["--grpc-port=1", "--grpc-port=7"], "grpc_port", 7),
        (["-poolName", "a.b"], "pool_name", "a.b"),
        (["--pool-name="], "pool_name", ""),
        (["--pool-namespace", ""], "pool_namespace", "default"),
        (["--secure-serving"], "secure_serving", True),
        (["--secure-serving=false"], "secure_serving", False),
        (["--secureServing=F"], "secure_serving", False),
        (["--no-secure-serving"], "secure_serving", False),
        (["--no-secure-serving=false"], "secure_serving", True),
        (["--secure-serving", "false"], "secure_serving", False),
        (["--secure-serving=0", "--grpc-port=7"], "secure_serving", False),
        (["--metrics-endpoint-auth"], "metrics_endpoint_auth", True),
        (["--metrics-endpoint-auth=auto"], "metrics_endpoint_auth", None),
        (["--no-metrics-endpoint-auth"], "metrics_endpoint_auth", False),
        (["--seed", "-5"], "seed", -5),
        (["--v=4"], "v", 4),
        (["-v", "4"], "v", 4),
        (["--refreshMetricsInterval=50ms"], "refresh_metrics_interval_s", 0.05),
        (["--refresh-metrics-interval-s", "0.5"], "refresh_metrics_interval_s", 0.5),
        (["--drain-timeout", "1m30s"], "drain_timeout_s", 90.0),
        (["--drain-timeout-s=5"], "drain_timeout_s", 5.0),
        (["--max-staleness", "off"], "max_staleness_s", None),
        (["--max-staleness=0"], "max_staleness_s", None),
        (["--max-staleness=5m"], "max_staleness_s", 300.0),
        (["--max-staleness-s=5"], "max_staleness_s", 5.0),
        (["--max-request-body-bytes", "64Ki"], "max_request_body_bytes", 65536),
        (["--max-request-body-bytes=10"], "max_request_body_bytes", 10),
        (["--host", "[::1]"], "host", "::1"),
        (["--watch-namespace=a", "--watch-namespace", "b,c"], "watch_namespaces", ("a", "b", "c")),
        (["--transport=HTTP2"], "transport", "http2"),
    ],
)
def test_spellings(args: list[str], name: str, expected: object) -> None:
    assert expected == getattr(Settings.parse(args), name)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.flag)
def test_each_setting_is_a_variable_too(row: Setting) -> None:
    """EPP_<FLAG> sets it: a path is taken, and any other nonsense told with the variable's name."""
    if row.kind.metavar == "PATH" and row.default == "":
        assert getattr(Settings.parse(env={row.variable: "x"}), row.name) == "x"
    else:
        assert any(row.variable in told for told in mistakes(**{row.variable: "\x01"}))


def test_the_command_line_wins_over_the_environment() -> None:
    env = {"EPP_GRPC_PORT": "1", "EPP_WATCH_NAMESPACE": "a,b", "EPP_DRAIN_TIMEOUT_S": "3"}
    settings = Settings.parse(["--grpc-port=2", "--watch-namespace=c"], env)

    assert settings.grpc_port == 2
    assert settings.watch_namespaces == ("c",)
    assert settings.drain_timeout_s == 3.0


def test_the_namespace_falls_back_as_the_reference_s_does() -> None:
    assert Settings.parse(env={"NAMESPACE": "prod"}).pool_namespace == "prod"
    assert Settings.parse(env={"NAMESPACE": ""}).pool_namespace == "default"
    env = {"NAMESPACE": "prod", "EPP_POOL_NAMESPACE": "own"}
    assert Settings.parse(env=env).pool_namespace == "own"
    assert Settings.parse(["--pool-namespace=flag"], env).namespaces == ("flag",)


def test_service_links_of_kubernetes_are_not_settings() -> None:
    """A Service named `epp-grpc` sets EPP_GRPC_PORT=tcp://… in every pod of its namespace."""
    env = {
        "EPP_GRPC_PORT": "tcp://10.0.0.1:9002",
        "EPP_SERVICE_HOST": "10.0.0.1",
        "EPP_SERVICE_PORT": "9002",
        "EPP_PORT": "tcp://10.0.0.1:9002",
        "EPP_PORT_9002_TCP_ADDR": "10.0.0.1",
        "EPP_METRICS_SERVICE_PORT": "9090",
    }

    assert Settings.parse(env=env) == Settings()


def test_a_misspelt_variable_is_warned_about() -> None:
    settings = Settings.parse(env={"EPP_POOL_NMAE": "x", "EPP_SOMETHING_ELSE": "1"})

    assert settings.warnings == ("EPP_POOL_NMAE is no setting; did you mean EPP_POOL_NAME?",)


def test_flags_of_the_reference_are_named_in_one_warning() -> None:
    """Its command lines start this picker; a flag's value is not taken for something else."""
    settings = Settings.parse(
        ["--zap-encoder", "json", "-zap-devel", "--tracing=false", "--no-tracing",
         "--config-file=/etc/epp.yaml", "--enable-cert-reload", "--health-checking=true",
         "--kvCacheUsagePercentageMetric", "vllm:kv", "--grpc-port=7"]
    )  # fmt: skip

    assert settings.grpc_port == 7
    assert len(settings.warnings) == 1
    assert settings.warnings[0].endswith(
        "--zap-encoder, --zap-devel, --tracing, --no-tracing, --config-file, "
        "--kv-cache-usage-percentage-metric"
    )


def test_no_setting_is_shadowed_by_a_flag_without_meaning() -> None:
    assert not [row.flag for row in TABLE if row.flag in FOREIGN]


def test_every_mistake_is_told_at_once() -> None:
    """Each with where it stands and what would be right; none hides another."""
    told = mistakes(
        "--grpc-prot=1", "--metrics-port=ninety", "--drain-timeout=30", "stray",
        "--secure-serving=ja", "--pool-name",
        EPP_FALLBACKS="99", EPP_V="high",
    )  # fmt: skip

    assert len(told) == 8
    everything = "\n".join(told)
    assert "--grpc-prot: no such flag\n  fix: did you mean --grpc-port?" in everything
    assert "--metrics-port: 'ninety' is no whole number" in everything
    assert "did you mean 30s?" in everything
    assert "unexpected argument 'stray'" in everything
    assert "--secure-serving: 'ja' is neither true nor false" in everything
    assert "--pool-name: needs a value (NAME)" in everything
    assert "EPP_FALLBACKS: 99 is not between 0 and 16" in everything
    assert "EPP_V: 'high' is no whole number" in everything


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--grpc-port=9090"], "port 9090 is taken twice"),
        (["--client-ca-path=ca.pem", "--secure-serving=false"], "need TLS"),
        (["--manifests=a", "--kubeconfig=b"], "cannot both be the source"),
        (["--refresh-metrics-interval=3s"], "stale before the next"),
        (["--refresh-metrics-interval=0"], "is below 1ms"),
        (["--refresh-metrics-interval-s=0"], "is below 1ms"),
        (["--pool-name", "--seed=1"], "needs a value"),
        (["--pool-name=-"], "no object's name"),
        (["--pool-name=No"], "no object's name"),
        (["--pool-name=" + "a" * 254], "no object's name"),
        (["--watch-namespace=a,B"], "no namespace's name"),
        (["--model-server-metrics-path=metrics"], "begins with /"),
        (["--max-request-body-bytes=0"], "is below 1"),
        (["--max-request-body-bytes=1.5"], "not a whole number"),
        (["--max-request-body-bytes=-1"], "is no size"),
        (["--grpc-port=65536"], "not between 0 and 65535"),
        (["--grpc-port=٣"], "no whole number"),
        (["--grpc-port="], "no whole number"),
        (["--unknown-models=x"], "is none of"),
        (["--no-secure-serving=x"], "neither true nor false"),
        (["--no-grpc-port"], "no such flag"),
        (["---"], "unexpected argument"),
        (["--=x"], "no such flag"),
    ],
)
def test_refusals(args: list[str], expected: str) -> None:
    assert any(expected in told for told in mistakes(*args)), mistakes(*args)


def test_a_broken_value_brings_no_second_mistake_with_it() -> None:
    """The default that stands in for it is not held against the other settings."""
    assert len(mistakes("--grpc-port=x", "--metrics-port=9002")) == 1


def test_ports_of_zero_do_not_collide() -> None:
    zero = ["--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--debug-port=0"]

    assert Settings.parse(zero).grpc_port == 0


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "INFO"),
        (["--v=0"], "WARNING"),
        (["--v=1"], "WARNING"),
        (["--v=3"], "INFO"),
        (["--v=5"], "DEBUG"),
        (["--v=5", "--log-level=error"], "ERROR"),
    ],
)
def test_level(args: list[str], expected: str) -> None:
    assert expected == Settings.parse(args).level


def test_metrics_are_guarded_in_a_cluster_and_open_without_one() -> None:
    assert Settings.parse().metrics_auth
    assert not Settings.parse(["--manifests=x"]).metrics_auth
    assert Settings.parse(["--manifests=x", "--metrics-endpoint-auth"]).metrics_auth


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [("50ms", 0.05), ("1s", 1), ("2m", 120), ("1h30m", 5400), ("1.5s", 1.5), (".5s", 0.5),
     ("1.s", 1), ("100us", 0.0001), ("100µs", 0.0001), ("7ns", 7e-9), ("0", 0), ("0s", 0)],
)  # fmt: skip
def test_durations_of_go(text: str, expected_s: float) -> None:
    assert expected_s == kinds.parse_duration_s(text)


@pytest.mark.parametrize(
    "text", ["", "5", "-1s", "1d", "s", "1s ", "1 s", "1e3s", "nan", "inf", "1s5", "9" * 30 + "h"]
)
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|years"):
        kinds.parse_duration_s(text)


@given(st.integers(0, 10**9).map(lambda ms: ms / 1000))
def test_shown_durations_read_back(value_s: float) -> None:
    assert kinds.parse_duration_s(kinds.show_duration(value_s)) == pytest.approx(value_s, abs=1e-9)


@given(st.integers(0, 2**63 - 1))
def test_shown_sizes_read_back(size: int) -> None:
    assert size == kinds.parse_size_bytes(kinds.show_size(size))


@given(st.lists(st.text(max_size=20) | st.sampled_from([f"--{row.flag}" for row in TABLE])))
def test_no_command_line_breaks_the_parser(args: list[str]) -> None:
    """Whatever is typed: settings, or mistakes that say what is wrong."""
    with suppress(InvalidSettings):
        Settings.parse(args)


@given(st.sampled_from([row.flag for row in TABLE]))
def test_camel_case_is_another_spelling(flag: str) -> None:
    head, *rest = flag.split("-")

    assert flag == canonical("-" + head + "".join(map(str.capitalize, rest)))
