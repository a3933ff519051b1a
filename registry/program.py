"""The parts of `epp-registry run`, put together once."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

from datastore.kube import KubeClient
from datastore.kube_auth import NoCluster, Where
from datastore.reflect import Pace as WatchPace
from registry.cluster import Cluster
from registry.discover import Registries
from registry.election import Election, Terms
from registry.errors import NotReachable
from registry.keeper import Pace, Tools
from registry.loop import Loop
from registry.memory import DeleteBudget
from registry.metrics import Metrics
from registry.model import Json
from registry.server import serving
from registry.settings import Settings
from registry.triggers import Triggers

log = logging.getLogger(__name__)

RESOLVE_LIMIT_S = 30.0


@asynccontextmanager
async def connect_all(
    settings: Settings, environ: Mapping[str, str]
) -> AsyncIterator[tuple[KubeClient, Cluster, Registries]]:
    """Open the cluster and make the registries reachable, for as long as the block runs."""
    async with AsyncExitStack() as stack:
        where = Where(settings.kubeconfig, settings.context, environ)
        try:
            connected = await KubeClient.connect(where)
        except NoCluster as error:
            raise NotReachable(str(error)) from error
        client = await stack.enter_async_context(connected)
        cluster = Cluster(client)
        registries = Registries(
            settings.address,
            settings.policy,
            cluster,
            stack,
            ttl_s=settings.answer_ttl_s,
            limit_s=RESOLVE_LIMIT_S,
        )
        yield client, cluster, registries


async def run(
    settings: Settings,
    environ: Mapping[str, str],
    rng: Random,
    *,
    stop: asyncio.Event | None = None,
    on_start: Callable[[int, Loop | None], None] = lambda port, loop: None,
    watch_pace: WatchPace | None = None,
) -> None:
    """Reconcile until `stop` is set.  `on_start` is told the port of the HTTP server."""
    metrics = Metrics()
    metrics.enabled.set(settings.enabled)
    stop = stop or asyncio.Event()
    if settings.enabled:
        pace = watch_pace or WatchPace()
        await _run_enabled(settings, environ, rng, metrics, stop, on_start, pace)
        return
    log.warning("the model registry is not followed: --model-registry-enabled is off")
    off: Json = {"enabled": False}
    async with serving(settings.host, settings.port, metrics, lambda: off) as port:
        on_start(port, None)
        await stop.wait()


async def run_until_signalled(settings: Settings, environ: Mapping[str, str], rng: Random) -> None:
    """Reconcile until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(settings, environ, rng, stop=stop)


async def _run_enabled(
    settings: Settings,
    environ: Mapping[str, str],
    rng: Random,
    metrics: Metrics,
    stop: asyncio.Event,
    on_start: Callable[[int, Loop | None], None],
    watch_pace: WatchPace,
) -> None:
    where = settings.address.url or "the Service that is labelled as one"
    log.info("the model registry is followed: %s, every %g s", where, settings.period_s)
    async with connect_all(settings, environ) as (client, cluster, registries):
        tools = Tools(
            registries,
            cluster,
            settings.policy,
            DeleteBudget(settings.max_deletes, settings.budget_period_s),
            metrics,
            Pace(settings.period_s, settings.settle_s),
            rng,
        )
        triggers = Triggers(
            client,
            settings.selector,
            lambda namespace, runtime: main.nudge(namespace, runtime),
            pace=watch_pace,
            rng=rng,
        )
        main = Loop(tools, triggers, _election(settings, client, rng))

        def state() -> Json:
            return {"enabled": True, **main.state()}

        async with serving(settings.host, settings.port, metrics, state) as port:
            on_start(port, main)
            async with asyncio.TaskGroup() as tasks:
                work = tasks.create_task(main.run(), name="registry loop")
                await stop.wait()
                work.cancel()


def _election(settings: Settings, client: KubeClient, rng: Random) -> Election | None:
    if not settings.elect:
        return None
    namespace = settings.lease_namespace or client.namespace
    terms = Terms(namespace, settings.lease_name, settings.identity or _identity(rng))
    return Election(client, terms, rng)


def _identity(rng: Random) -> str:
    return f"epp-registry-{rng.getrandbits(48):012x}"
