"""The composition root: build the parts from the settings, run them, and end them in order.

A root task that ends, ends the process.  SIGTERM or SIGINT: not ready any more, no new
streams, those that are open finish within --drain-timeout; a second signal ends at once.
"""

import asyncio
import gc
import logging
import os
import signal
import ssl
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import uvloop

from console import Mistake, fail_all
from datastore.events import Event
from datastore.scrape import Scraper, ScrapeSettings
from datastore.store import Changes, Store
from epp.accesslog import AccessLog
from epp.admin import Admin, Allowed
from epp.clustersource import FromCluster
from epp.edsfile import EdsFolder
from epp.extproc.codec import METHOD
from epp.extproc.health import SERVICE as HEALTH_SERVICE
from epp.extproc.health import Health, HealthService
from epp.extproc.paths import Services
from epp.extproc.service import ExtProc, Limits
from epp.extproc.transports.limits import Limits as TransportLimits
from epp.extproc.transports.limits import TransportStats
from epp.extproc.transports.select import listen
from epp.extproc.transports.server import Server
from epp.extproc.transports.tls import CertificateError, Certificates, from_folder, self_signed
from epp.logs import set_up_logs
from epp.metrics import PickerMetrics
from epp.observer import RequestObserver
from epp.readiness import Readiness
from epp.release import release
from epp.routing.router import Policy, Router, ServeModels
from epp.settings import Settings
from epp.sources import FromManifests, Source, StartError

_log = logging.getLogger(__name__)

LAG_PROBE_S = 0.1
"""How often the event loop is asked how late it is."""

GC_THRESHOLDS = (2_000, 20, 2_000)

EDS_GATHER_S = 0.02
EDS_RETRY_S = 5.0

STOPPING = "nothing: it is shutting down"

_FRAMING_BYTES = 1024 * 1024
"""Room in a gRPC message beside the largest body: headers, metadata, framing."""


def run(settings: Settings, environ: Mapping[str, str]) -> int:
    """Serve until told to stop; return the exit status.

    `environ` says where the cluster is, as Kubernetes' own tools take it (KUBECONFIG, HOME, …).
    """
    set_up_logs(settings.level)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, environ))
    except StartError as error:
        fail_all(error.mistakes)


async def _serve(settings: Settings, environ: Mapping[str, str]) -> int:
    stop = _stop_on_signals()
    async with AsyncExitStack() as stack:
        picker = Picker(settings, environ, stack)
        await picker.start()
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(_for_ever(name, work), name=name) for name, work in picker.tasks()
            ]
            await stop.wait()
            await picker.drain()
            for task in running:
                task.cancel()
    return 0


class Picker:
    """All the parts of one picker.  `start`, then run `tasks`, then `drain`."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], stack: AsyncExitStack
    ) -> None:
        self._settings = settings
        self._stack = stack
        self._loop = asyncio.get_running_loop()
        self._rng = Random(settings.seed)
        self._store = Store()
        self._stats = TransportStats()
        self._health = Health()
        self._readiness = Readiness(self._health)
        self._metrics = PickerMetrics(version=release())
        self._metrics.watch(self._store)
        self._metrics.watch_transport(self._stats)
        self._tls = _tls(settings, self._stats)
        self._scraper = Scraper(self._store, _scrape(settings), rng=self._rng)
        self._extproc = ExtProc(
            Router(_policy(settings), self._rng),
            self._store,
            RequestObserver(self._metrics, self._access_log()),
            clock=time.monotonic,  # uvloop's own clock stands still while it serves
            pass_response=settings.response_mode == "pass",
            limits=Limits(settings.max_request_body_bytes, settings.max_buffered_bytes),
            synced=settings.standalone,
        )
        self._source = self._make_source(environ)
        self._servers: list[Server] = []
        self._eds = EdsFolder(Path(settings.eds_dir)) if settings.eds_dir else None
        self._eds_write: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Fill the store and open the ports.  Raises StartError."""
        settings = self._settings
        await self._source.start()
        if self._eds is not None and self._settings.standalone:
            self._write_eds()
        limits = _transport_limits(settings)
        health = HealthService(self._health)
        services = Services({_service(METHOD): self._extproc, HEALTH_SERVICE: health})
        with _named_port("--grpc-port", settings.grpc_port):
            grpc_server = await listen(
                services,
                host=settings.host,
                port=settings.grpc_port,
                transport=settings.transport,
                tls=self._tls,
                limits=limits,
                stats=self._stats,
                rng=self._rng,
            )
        self._own(grpc_server)
        with _named_port("--grpc-health-port", settings.grpc_health_port):
            health_server = await listen(
                Services({HEALTH_SERVICE: health}),
                host=settings.host,
                port=settings.grpc_health_port,
                transport="http2",
                limits=limits,
            )
        self._own(health_server)
        metrics_port, debug_port = await self._serve_pages()
        _settle_garbage_collector()
        _log.info(
            "serving: grpc-port=%d grpc-health-port=%d metrics-port=%d debug-port=%d",
            grpc_server.port,
            health_server.port,
            metrics_port,
            debug_port,
        )

    async def _serve_pages(self) -> tuple[int, int]:
        """Open the ports of the HTTP pages; return them, 0 for one that is off."""
        settings = self._settings
        admin = Admin(
            self._metrics,
            self._store,
            missing=lambda: self._readiness.missing,
            clock=self._loop.time,
            allowed=self._may_read_metrics(),
        )
        enter = self._stack.enter_async_context
        with _named_port("--metrics-port", settings.metrics_port):
            metrics = admin.serve(host=settings.host, port=settings.metrics_port)
            metrics_port = await enter(metrics)
        debug_port = 0
        if settings.debug_port:
            with _named_port("--debug-port", settings.debug_port):
                debug_port = await enter(admin.serve_debug(port=settings.debug_port))
        return metrics_port, debug_port

    def tasks(self) -> Sequence[tuple[str, Coroutine[Any, Any, None]]]:
        """Return what must run while the picker serves, each under its name."""
        tasks = [
            *self._source.tasks(),
            ("scrape", self._scraper.run()),
            ("loop-lag", self._probe_lag()),
        ]
        if self._tls is not None and self._tls.may_change:
            tasks.append(("certificates", self._tls.watch()))
        return tasks

    async def drain(self) -> None:
        """Let open streams end, within --drain-timeout."""
        self._readiness.lack(STOPPING)
        timeout_s = self._settings.drain_timeout_s
        _log.info("draining for up to %g s", timeout_s)
        done = await asyncio.gather(*(server.drain(timeout_s) for server in self._servers))
        if not all(done):
            _log.warning("some streams did not end within --drain-timeout")

    def _make_source(self, environ: Mapping[str, str]) -> Source:
        if self._settings.standalone:
            return FromManifests(self._settings, self._apply, self._readiness, self._metrics)
        return FromCluster(
            self._settings,
            environ,
            self._store,
            self._stack,
            on_change=self._follow,
            on_known=self._become_synced,
            readiness=self._readiness,
            metrics=self._metrics,
            rng=self._rng,
        )

    def _may_read_metrics(self) -> Allowed | None:
        if self._settings.metrics_auth and isinstance(self._source, FromCluster):
            return self._source.may_read_metrics
        return None

    def _become_synced(self) -> None:
        """Serve from a store that is whole, and let the collector pass over it."""
        _settle_garbage_collector()
        self._extproc.become_synced()
        self._write_eds_soon()

    def _apply(self, events: Sequence[Event]) -> None:
        self._follow(self._store.apply(events))

    def _follow(self, changes: Changes) -> None:
        """Let those parts know that go by what the store says."""
        if changes.endpoints or changes.pools:
            self._scraper.notice()
            self._write_eds_soon()
        for name in changes.models:
            if self._store.model(name) is None:
                self._metrics.forget(name.namespace, name.name)

    def _write_eds_soon(self) -> None:
        """Bring Envoy's EDS files up to date, once for all changes of a short while."""
        # While the cluster is only half known, what an earlier run has written is nearer the truth.
        if self._eds is not None and self._eds_write is None and self._extproc.synced:
            self._eds_write = self._loop.call_later(EDS_GATHER_S, self._write_eds)

    def _write_eds(self) -> None:
        assert self._eds is not None
        self._eds_write = None
        try:
            self._eds.sync(self._store.pools())
        except OSError as error:
            _log.error("EDS files in %s cannot be written: %s", self._settings.eds_dir, error)
            self._eds_write = self._loop.call_later(EDS_RETRY_S, self._write_eds)

    def _own(self, server: Server) -> None:
        self._servers.append(server)
        self._stack.push_async_callback(server.close)

    def _access_log(self) -> AccessLog | None:
        if self._settings.level not in ("INFO", "DEBUG"):
            return None
        log = AccessLog()
        self._stack.callback(log.close)
        self._metrics.read("epp_access_log_dropped_total", lambda: log.dropped)
        return log

    async def _probe_lag(self) -> None:
        while True:
            due = self._loop.time() + LAG_PROBE_S
            await asyncio.sleep(LAG_PROBE_S)
            self._metrics.record_lag(max(0.0, self._loop.time() - due))


async def _for_ever(name: str, work: Coroutine[Any, Any, None]) -> NoReturn:
    await work
    raise RuntimeError(f"the task {name} has ended; the picker cannot go on without it")


def _stop_on_signals() -> asyncio.Event:
    """Return an event that the first signal sets; the second ends the process there and then."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    return stop


class _named_port:  # noqa: N801 - reads like the built-in context managers
    """Turn "address in use" into a mistake with a flag's name."""

    def __init__(self, flag: str, port: int) -> None:
        self._flag = flag
        self._port = port

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            what = f"port {self._port} cannot be opened: {error.strerror or error}"
            mistake = Mistake(what, self._flag, "give another port, or end who has this one")
            raise StartError([mistake]) from error


def _settle_garbage_collector() -> None:
    """Take what was built so far out of the collector's sight, so that its pauses stay short.

    A request makes no reference cycles: the young are looked at rarely, and all objects, which
    takes milliseconds with thousands of open streams, once in many millions.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _service(method: str) -> str:
    return method[1:].rpartition("/")[0]


def _policy(settings: Settings) -> Policy:
    return Policy(
        own_namespace=settings.pool_namespace,
        own_pool=settings.pool_name or None,
        fallbacks=settings.fallbacks,
        serve_models=ServeModels(settings.serve_models),
        pass_unknown_models=settings.unknown_models == "passthrough",
        use_subset=not settings.disable_endpoint_subset_filter,
        max_body_bytes=settings.max_request_body_bytes,
    )


def _transport_limits(settings: Settings) -> TransportLimits:
    return TransportLimits(
        max_message_bytes=settings.max_request_body_bytes + _FRAMING_BYTES,
        max_buffered_bytes=settings.max_buffered_bytes,
        max_connections=settings.max_connections,
        max_concurrent_streams=settings.max_concurrent_streams,
        max_header_list_bytes=settings.max_header_list_bytes,
        first_message_timeout_s=settings.first_message_timeout_s,
        stream_idle_timeout_s=settings.stream_idle_timeout_s,
        send_timeout_s=settings.send_timeout_s,
        max_connection_age_s=settings.max_connection_age_s or 0.0,
    )


def _scrape(settings: Settings) -> ScrapeSettings:
    verify: ssl.SSLContext | bool = True
    if settings.model_server_metrics_https_insecure_skip_verify:
        verify = False
    return ScrapeSettings(
        interval_s=settings.refresh_metrics_interval_s,
        staleness_s=settings.metrics_staleness_threshold_s,
        scheme=settings.model_server_metrics_scheme,
        path=settings.model_server_metrics_path,
        port=settings.model_server_metrics_port or None,
        ssl=verify,
    )


def _tls(settings: Settings, stats: TransportStats) -> Certificates | None:
    """Return where certificates come from.  Raises StartError."""
    if not settings.secure_serving:
        return None
    client_ca = Path(settings.client_ca_path) if settings.client_ca_path else None
    try:
        if settings.cert_path:
            return from_folder(Path(settings.cert_path), client_ca, stats)
        return self_signed(datetime.now(UTC), client_ca, stats)
    except CertificateError as error:
        flags = "--cert-path" if client_ca is None else "--cert-path, --client-ca-path"
        fix = "give a folder with tls.crt and tls.key, or leave it out for a self-signed one"
        raise StartError([Mistake(str(error), flags, fix)]) from error
