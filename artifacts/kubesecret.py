"""A storage-config secret, read from the Kubernetes API: the only module here that talks to it."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from artifacts.credentials import Connection, choose_key, decode_object, parse_connection
from artifacts.errors import ArtifactError, NotAllowed, PinGone, TryAgain, UsageError


async def connection_from_secret(
    namespace: str,
    name: str,
    key: str | None,
    base: Connection,
    *,
    environment: Mapping[str, str],
) -> Connection:
    """Return a connection from a secret, with the credentials that this process has for the API.

    Those are what KUBECONFIG names, else the pod's own, else the default kubeconfig.
    """
    where = f"secret {namespace}/{name}"
    data = await _read_secret(namespace, name, where, environment)
    chosen = choose_key(sorted(data), key, where=where)
    try:
        text = base64.b64decode(data[chosen], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise UsageError("the secret's value is not text", where=f"{where} {chosen}") from error
    fields = decode_object(text, where=f"{where} {chosen}")
    return parse_connection(fields, where=f"{where} {chosen}", base=base)


async def _read_secret(
    namespace: str, name: str, where: str, environment: Mapping[str, str]
) -> Mapping[str, str]:
    import aiohttp
    from kubernetes_asyncio import client, config
    from kubernetes_asyncio.client.exceptions import ApiException

    configuration = client.Configuration()
    kubeconfig = environment.get("KUBECONFIG") or None
    inside = kubeconfig is None and "KUBERNETES_SERVICE_HOST" in environment
    try:
        if inside:
            load = config.load_incluster_config
            load(client_configuration=configuration)  # type: ignore[no-untyped-call]  # no types there
        else:
            await config.load_kube_config(
                config_file=kubeconfig, client_configuration=configuration
            )
    except config.ConfigException as error:
        raise UsageError(
            "there is no way to the Kubernetes API",
            where=where,
            fix="Run inside a pod, set KUBECONFIG, or mount the secret: --storage-config FOLDER",
        ) from error
    async with client.ApiClient(configuration) as api:
        try:
            secret: Any = await client.CoreV1Api(api).read_namespaced_secret(name, namespace)
        except ApiException as error:
            raise _refusal(error.status, where) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TryAgain("the Kubernetes API does not answer", where=where) from error
    return secret.data or {}


def _refusal(status: int, where: str) -> ArtifactError:
    match status:
        case 401 | 403:
            return NotAllowed(
                f"the Kubernetes API refuses: {status}", where=where, fix="Allow `get` on it"
            )
        case 404:
            return PinGone("the secret does not exist", where=where, fix="Check its name")
        case _:
            return TryAgain(f"the Kubernetes API answered {status}", where=where)
