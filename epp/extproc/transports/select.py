"""Which transport serves a port."""

import asyncio
from random import Random

from epp.extproc.calls import Application
from epp.extproc.transports.http2 import Http2Connection
from epp.extproc.transports.limits import Limits, TransportStats
from epp.extproc.transports.server import Server, TlsSource, open_listener
from epp.extproc.transports.serving import Serving


async def listen(
    app: Application,
    *,
    host: str = "",
    port: int = 0,
    transport: str = "auto",
    tls: TlsSource | None = None,
    limits: Limits | None = None,
    stats: TransportStats | None = None,
    rng: Random | None = None,
) -> Server:
    """Serve `app` on a port."""
    serving = Serving(
        app=app,
        limits=limits or Limits(),
        stats=stats or TransportStats(),
        rng=rng or Random(),
        now=asyncio.get_running_loop().time(),
    )
    return Server(serving, open_listener(host, port), lambda: Http2Connection(serving), tls=tls)
