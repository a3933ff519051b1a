"""An API server in a process of its own, for the figures of the watches.

It fills itself, prints where it is, and then does what it reads, a JSON object a line:
`{"rate": 200, "seconds": 5}` changes models at that rate and prints how many once done.  Each
change carries the moment at which it was committed (CLOCK_MONOTONIC is the same in every process)
as the name of its target model.
"""

import asyncio
import json
import sys
import time
from typing import Any

from tests.fakes.apiserver import ApiServer

X_GROUP = "inference.networking.x-k8s.io/v1alpha2"


def model(number: int, target: str = "base") -> dict[str, Any]:
    """Return the manifest of an InferenceModel."""
    return {
        "apiVersion": X_GROUP,
        "kind": "InferenceModel",
        "metadata": {"name": f"model-{number}", "labels": {"team": f"team-{number % 20}"}},
        "spec": {"poolRef": {"name": f"pool-{number % 50}"}, "targetModels": [{"name": target}]},
    }


def pool(number: int) -> dict[str, Any]:
    """Return the manifest of an InferencePool."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": f"pool-{number}"},
        "spec": {
            "selector": {"matchLabels": {"app": f"pool-{number}"}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        },
    }


def pod(number: int, pools: int) -> dict[str, Any]:
    """Return a pod about as large as a model server's is."""
    env = [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(30)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "labels": {"app": f"pool-{number % pools}", "pod-template-hash": "5d4f8c7b9"},
            "annotations": {"note": "x" * 500},
        },
        "spec": {"containers": [{"name": "server", "image": "vllm", "env": env}]},
        "status": {
            "podIP": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


async def main() -> None:
    """Fill a server, say where it is, and follow orders."""
    models, pods, pools = (int(argument) for argument in sys.argv[1:4])
    async with ApiServer(tls=False) as api:
        for number in range(pools):
            api.put(pool(number))
        for number in range(models):
            api.put(model(number))
        for number in range(pods):
            api.put(pod(number, pools))
        print(json.dumps({"url": api.url, "token": api.token}), flush=True)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            done = await change(api, models, order["rate"], order["seconds"])
            print(json.dumps({"changed": done}), flush=True)


async def change(api: ApiServer, models: int, rate: float, seconds: float) -> int:
    """Change models at a steady rate; return how many were changed."""
    start = time.monotonic()
    done = 0
    while (passed := time.monotonic() - start) < seconds:
        while done < passed * rate:
            api.put(model(done % max(models, 1), f"at-{time.monotonic()}"))
            done += 1
        await asyncio.sleep(0.001)
    return done


if __name__ == "__main__":
    asyncio.run(main())
