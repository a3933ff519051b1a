"""A complete Envoy bootstrap that asks this picker, as a value: options in, a dict out.

Nothing here opens a file or a socket; `command` writes the YAML, `samples` names the ones that the
repository ships.
"""

from epp.envoyconfig.bootstrap import bootstrap, render, to_yaml
from epp.envoyconfig.options import BodyMode, EndpointMode, EnvoyOptions

__all__ = ["BodyMode", "EndpointMode", "EnvoyOptions", "bootstrap", "render", "to_yaml"]
