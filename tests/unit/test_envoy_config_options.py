"""The generated Envoy configuration as a value; whether Envoy takes it is tested in e2e/."""

import pytest
import yaml

from epp.envoyconfig import BodyMode, EndpointMode, EnvoyOptions, bootstrap, to_yaml
from epp.envoyconfig.command import parse_address
from epp.envoyconfig.options import OptionError, eds_file_name


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"endpoint": EndpointMode.OVERRIDE_HOST}, "--pool"),
        ({"pools": ("a/b",)}, "--pool"),
        ({"endpoint": EndpointMode.OVERRIDE_HOST, "pools": ("a",)}, "NAMESPACE/NAME"),
        ({"endpoint": EndpointMode.OVERRIDE_HOST, "pools": ("a/",)}, "NAMESPACE/NAME"),
        ({"endpoint": EndpointMode.OVERRIDE_HOST, "pools": ("a/b/c",)}, "NAMESPACE/NAME"),
        ({"endpoint": EndpointMode.OVERRIDE_HOST, "pools": ("a/b", "a/b")}, "twice"),
        ({"picker_ca_file": "ca.pem", "picker_tls": False}, "--picker-ca"),
    ],
)
def test_options_that_contradict_each_other_are_refused_by_the_flags_name(
    options: dict[str, object], flag: str
) -> None:
    with pytest.raises(OptionError, match=flag):
        EnvoyOptions(**options)  # type: ignore[arg-type]  # test data


@pytest.mark.parametrize("name", ["n", "y", "on", "null", "1e3", "0x10", "1_000", "12:30", ""])
def test_no_string_reaches_envoy_as_anything_else(name: str) -> None:
    """Envoy reads YAML 1.1, where a pool named `n` is a boolean: every value is quoted."""
    text = to_yaml({"value": name})

    assert text.splitlines()[-1] == f'value: "{name}"'
    assert yaml.safe_load(text) == {"value": name}


def test_only_modes_in_which_envoy_holds_a_body_raise_the_buffer_limit() -> None:
    limits = {
        mode: EnvoyOptions(request_body=mode).effective_buffer_limit_bytes for mode in BodyMode
    }

    assert {m for m, limit in limits.items() if limit > 1024 * 1024} == {
        BodyMode.BUFFERED,
        BodyMode.BUFFERED_PARTIAL,
        BodyMode.STREAMED,
    }


@pytest.mark.parametrize("endpoint", list(EndpointMode))
def test_every_cluster_has_raised_circuit_breakers(endpoint: EndpointMode) -> None:
    """Envoy's default of 1024 requests refuses under load with `overflow`."""
    pools = ("a/b", "a/c") if endpoint is EndpointMode.OVERRIDE_HOST else ()
    config = bootstrap(EnvoyOptions(endpoint=endpoint, pools=pools, max_requests=7777))

    for cluster in config["static_resources"]["clusters"]:
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        assert set(threshold.values()) == {7777}, cluster["name"]


def test_a_pools_file_is_no_other_pools_file() -> None:
    assert eds_file_name("a.b/c") != eds_file_name("a/b.c")
    assert eds_file_name("a-b/c") != eds_file_name("a/b-c")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:9002", ("10.0.0.1", 9002)),
        ("epp.default.svc:1", ("epp.default.svc", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_a_pickers_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "::1:9002", "h:0", "h:65536", "h:x"])
def test_a_bad_pickers_address_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--picker"):
        parse_address(text)
