"""The bootstrap as a whole, and its YAML."""

from typing import Any

import yaml

from epp.envoyconfig.clusters import clusters
from epp.envoyconfig.listener import listener
from epp.envoyconfig.options import EndpointMode, EnvoyOptions

HEADER = """\
# Made by `epp envoy-config`; run it again rather than editing this.
# Start it with `envoy -c FILE`, check it with `envoy --mode validate -c FILE`.
"""

GRACEFUL_CLOSE_FLAG = "envoy.reloadable_features.ext_proc_graceful_grpc_close"


def bootstrap(options: EnvoyOptions) -> dict[str, Any]:
    """Return a complete Envoy bootstrap: everything that Envoy needs is in it."""
    config: dict[str, Any] = {
        "node": {"id": "inference-gateway", "cluster": "inference-gateway"},
        "static_resources": {
            "listeners": [listener(options)],
            "clusters": clusters(options),
        },
    }
    if options.admin_port >= 0:
        address = {"address": options.admin_host, "port_value": options.admin_port}
        config["admin"] = {"address": {"socket_address": address}}
    if options.graceful_close:
        layer = {"name": "picker", "static_layer": {GRACEFUL_CLOSE_FLAG: True}}
        config["layered_runtime"] = {"layers": [layer]}
    return config


class _Quoted(str):
    """A string that YAML may not take for anything else."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Quotes every value: a pool named `n` or `1e3` would reach Envoy as a boolean or a number.

    Shared values are written out in full: Envoy reads anchors, people do not.
    """

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_quoted(dumper: yaml.SafeDumper, value: _Quoted) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style='"')


_Dumper.add_representer(_Quoted, _represent_quoted)


def render(options: EnvoyOptions) -> str:
    """Return the bootstrap as a file: what the picker must be told, then the YAML."""
    return HEADER + _note(options) + to_yaml(bootstrap(options))


def to_yaml(config: dict[str, Any]) -> str:
    """Return the configuration as YAML, in the order in which it was built."""
    return str(yaml.dump(_quote(config), Dumper=_Dumper, sort_keys=False, width=100))


def _note(options: EnvoyOptions) -> str:
    if options.endpoint is EndpointMode.OVERRIDE_HOST:
        return (
            f"# Start the picker first, with `--eds-dir {options.eds_dir} --fallbacks 2`:\n"
            "# it writes the EDS files, and Envoy does not start without them.\n"
        )
    return (
        "# Leave the picker's --fallbacks at 0: this cluster answers 503 to a list of endpoints.\n"
    )


def _quote(value: Any) -> Any:
    match value:
        case dict():
            return {key: _quote(item) for key, item in value.items()}
        case list():
            return [_quote(item) for item in value]
        case str():
            return _Quoted(value)
        case _:
            return value
