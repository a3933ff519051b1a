"""The sample configurations in deploy/envoy/, and which options make each.

`python -m epp.envoyconfig.samples FOLDER` writes them; a test keeps the folder current.
"""

import sys
from pathlib import Path

from epp.envoyconfig.bootstrap import render
from epp.envoyconfig.options import BodyMode, EndpointMode, EnvoyOptions

SAMPLES: dict[str, EnvoyOptions] = {
    # Standalone: the model's poolRef tells the pool, any address is reached.
    "original-dst.yaml": EnvoyOptions(),
    # Many pools behind one picker, with fallbacks (`epp serve --fallbacks 2`).
    "override-host.yaml": EnvoyOptions(
        endpoint=EndpointMode.OVERRIDE_HOST, pools=("default/llama", "default/mistral")
    ),
    # The listener belongs to one pool: models of others are not found here.
    "bound-to-a-pool.yaml": EnvoyOptions(bind_namespace="default", bind_pool="llama"),
    # For gateways that cannot stream both ways.
    "buffered.yaml": EnvoyOptions(request_body=BodyMode.BUFFERED, response_body=BodyMode.NONE),
}


def write(folder: Path) -> None:
    """Write every sample into `folder`."""
    for name, options in SAMPLES.items():
        (folder / name).write_text(render(options))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
