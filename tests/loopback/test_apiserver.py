"""The API server for tests keeps the promises of a real one that the programs rely on."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.fakes.apiserver import ApiServer
from tests.fakes.kube_access import User, rules_of
from tests.fakes.kube_faults import WatchList

Json = dict[str, Any]
MODELS = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/default/inferencemodels"


def model(name: str, **spec: object) -> Json:
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceModel",
        "metadata": {"name": name, "labels": {"app": name[0]}},
        "spec": {"poolRef": {"name": "pool"}, **spec},
    }


class Client:
    """A plain HTTP client: what a test sends is what goes out."""

    def __init__(self, api: ApiServer, session: aiohttp.ClientSession) -> None:
        self.api = api
        self.session = session

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        kind: str = "application/json",
        **query: str,
    ) -> tuple[int, Json]:
        headers = {"Authorization": f"Bearer {self.api.token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        async with self.session.request(
            method, self.api.url + path, data=data, headers=headers, params=query
        ) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else {"text": text}

    async def watch(self, path: str, **query: str) -> AsyncIterator[Json]:
        headers = {"Authorization": f"Bearer {self.api.token}"}
        async with self.session.get(
            self.api.url + path, headers=headers, params={"watch": "true", **query}
        ) as response:
            if response.status != 200:
                yield await response.json()
                return
            async for line in response.content:
                yield json.loads(line)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_every_s=0.05) as server:
        yield server


@pytest.fixture
async def client(api: ApiServer) -> AsyncIterator[Client]:
    context = ssl.create_default_context(cadata=api.ca.decode())
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(api, session)


async def take(lines: AsyncIterator[Json], count: int) -> list[Json]:
    """Return the next lines of a watch that are not bookmarks."""
    found: list[Json] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            line = await anext(lines)
            if line["type"] != "BOOKMARK":
                found.append(line)
    return found


def told(lines: list[Json]) -> list[tuple[str, str]]:
    return [(line["type"], line["object"]["metadata"]["name"]) for line in lines]


async def test_create_get_replace_delete(client: Client) -> None:
    """A write is checked against the version it was made for; generation counts changes of spec."""
    status, made = await client.ask("POST", MODELS, model("a"))
    assert status == 201
    assert made["metadata"]["generation"] == 1
    assert (await client.ask("POST", MODELS, model("a")))[1]["reason"] == "AlreadyExists"
    changed = {**made, "spec": {"poolRef": {"name": "other"}}}
    status, after = await client.ask("PUT", f"{MODELS}/a", changed)
    assert (status, after["metadata"]["generation"]) == (200, 2)
    assert (await client.ask("PUT", f"{MODELS}/a", made))[1]["reason"] == "Conflict"
    same = await client.ask("PUT", f"{MODELS}/a", after)
    assert same[1]["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    assert (await client.ask("DELETE", f"{MODELS}/a"))[0] == 200
    assert (await client.ask("GET", f"{MODELS}/a"))[0] == 404


async def test_status_is_apart(client: Client) -> None:
    """A write of the object leaves status alone, a write of status leaves the rest alone."""
    _, made = await client.ask("POST", MODELS, {**model("a"), "status": {"x": 1}})
    assert "status" not in made
    patch = {"status": {"x": 2}, "spec": {"poolRef": {"name": "other"}}}
    merge = "application/merge-patch+json"
    _, after = await client.ask("PATCH", f"{MODELS}/a/status", patch, merge, resourceVersion="")
    assert after["status"] == {"x": 2}
    assert after["spec"] == made["spec"]
    assert after["metadata"]["generation"] == 1


async def test_finalizers_hold_an_object(client: Client) -> None:
    """A deleted object with finalizers stays, marked, until the last finalizer is gone."""
    body = model("a")
    body["metadata"]["finalizers"] = ["x/y"]
    await client.ask("POST", MODELS, body)
    _, marked = await client.ask("DELETE", f"{MODELS}/a")
    assert marked["metadata"]["deletionTimestamp"]
    merge = "application/merge-patch+json"
    await client.ask("PATCH", f"{MODELS}/a", {"metadata": {"finalizers": None}}, merge)
    assert (await client.ask("GET", f"{MODELS}/a"))[0] == 404


async def test_pages_are_one_snapshot(client: Client, api: ApiServer) -> None:
    """A continued list shows the moment of its first page; an expired one is 410."""
    for name in "abcde":
        api.put(model(name))
    _, first = await client.ask("GET", MODELS, limit="2")
    api.remove(model("e"))
    token = first["metadata"]["continue"]
    assert first["metadata"]["remainingItemCount"] == 3
    _, second = await client.ask("GET", MODELS, limit="10", **{"continue": token})
    names = [item["metadata"]["name"] for item in first["items"] + second["items"]]
    assert names == list("abcde")
    api.compact()
    status, body = await client.ask("GET", MODELS, limit="2", **{"continue": token})
    assert (status, body["reason"]) == (410, "Expired")


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=a", "a"),
        ("app!=a", "bc"),
        ("app in (a, b)", "ab"),
        ("app notin (a,b)", "c"),
        ("app", "abc"),
        ("!app", ""),
        ("app,app!=b", "ac"),
    ],
)
async def test_label_selectors(client: Client, api: ApiServer, selector: str, names: str) -> None:
    for name in "abc":
        api.put(model(name))
    _, found = await client.ask("GET", MODELS, labelSelector=selector)
    assert "".join(item["metadata"]["name"] for item in found["items"]) == names


async def test_watch_from_a_list(client: Client, api: ApiServer) -> None:
    """A watch from a list's revision tells exactly what came after it, in order."""
    api.put(model("a"))
    _, found = await client.ask("GET", MODELS)
    api.put(model("b"))
    version = found["metadata"]["resourceVersion"]
    lines = client.watch(MODELS, resourceVersion=version, allowWatchBookmarks="true")
    assert told(await take(lines, 1)) == [("ADDED", "b")]
    api.put(model("a", criticality="Critical"))
    api.remove(model("b"))
    assert told(await take(lines, 2)) == [("MODIFIED", "a"), ("DELETED", "b")]
    async with asyncio.timeout(5):
        line = await anext(lines)
    assert line["type"] == "BOOKMARK"
    assert line["object"]["metadata"]["resourceVersion"] == str(api.storage.revision)


async def test_watch_with_a_selector(client: Client, api: ApiServer) -> None:
    """An object that leaves a selector is deleted for that watch; one that enters is added."""
    api.put(model("a"))
    lines = client.watch(MODELS, labelSelector="app=a", resourceVersion="0")
    assert told(await take(lines, 1)) == [("ADDED", "a")]
    away, back = model("a"), model("a")
    away["metadata"]["labels"] = {"app": "z"}
    api.put(away)
    api.put(back)
    assert told(await take(lines, 2)) == [("DELETED", "a"), ("ADDED", "a")]


async def test_watch_window(client: Client, api: ApiServer) -> None:
    """A watch from before the window is 410, as an event or as a status."""
    api.put(model("a"))
    api.compact()
    lines = client.watch(MODELS, resourceVersion="1")
    (line,) = await take(lines, 1)
    assert (line["type"], line["object"]["code"]) == ("ERROR", 410)
    api.faults.gone_as_event = False
    (line,) = [line async for line in client.watch(MODELS, resourceVersion="1")]
    assert (line["code"], line["reason"]) == (410, "Expired")


async def test_watch_list(client: Client, api: ApiServer) -> None:
    """With sendInitialEvents a watch begins with every object and says where they end."""
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    api.put(model("a"))
    lines = client.watch(MODELS, **query)
    first, second = await anext(lines), await anext(lines)
    assert first["type"] == "ADDED"
    assert second["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    api.faults.watch_list = WatchList.REFUSED_422
    (line,) = [line async for line in client.watch(MODELS, **query)]
    assert line["code"] == 422


async def test_cut_and_silence(client: Client, api: ApiServer) -> None:
    """A cut watch breaks off in the middle of a line; a silent one says nothing at all."""
    lines = client.watch(MODELS, resourceVersion="0", allowWatchBookmarks="true")
    await anext(lines)
    api.cut_watches()
    with pytest.raises((aiohttp.ClientError, ValueError)):
        await take(lines, 1)
    api.faults.silent = True
    api.put(model("a"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await anext(client.watch(MODELS, resourceVersion="0", allowWatchBookmarks="true"))


async def test_apply_owns_fields(client: Client) -> None:
    """Server-side apply: conflicts are refused without force, dropped fields are removed."""
    kind = "application/apply-patch+yaml"
    body = model("a", criticality="Critical", targetModels=[{"name": "x"}])
    status, _ = await client.ask("PATCH", f"{MODELS}/a", body, kind, fieldManager="one")
    assert status == 201
    other = model("a", criticality="Sheddable")
    del other["spec"]["poolRef"]
    status, refusal = await client.ask("PATCH", f"{MODELS}/a", other, kind, fieldManager="two")
    assert (status, refusal["details"]["causes"][0]["field"]) == (409, ".spec.criticality")
    _, forced = await client.ask(
        "PATCH", f"{MODELS}/a", other, kind, fieldManager="two", force="true"
    )
    assert forced["spec"]["criticality"] == "Sheddable"
    status, after = await client.ask("PATCH", f"{MODELS}/a", model("a"), kind, fieldManager="one")
    assert status == 200
    assert after["spec"] == {"poolRef": {"name": "pool"}, "criticality": "Sheddable"}
    again = await client.ask("PATCH", f"{MODELS}/a", model("a"), kind, fieldManager="one")
    assert again[1]["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    owners = {row["manager"]: row["operation"] for row in after["metadata"]["managedFields"]}
    assert owners == {"one": "Apply", "two": "Apply"}


async def test_apply_to_status_merges_conditions(client: Client, api: ApiServer) -> None:
    """Conditions are a map by type: two managers each keep their own."""
    kind = "application/apply-patch+yaml"
    api.put(model("a"))
    for manager in ("one", "two"):
        body = {
            **{key: model("a")[key] for key in ("apiVersion", "kind")},
            "metadata": {"name": "a"},
            "status": {"conditions": [{"type": manager, "status": "True"}]},
        }
        _, after = await client.ask("PATCH", f"{MODELS}/a/status", body, kind, fieldManager=manager)
    assert [one["type"] for one in after["status"]["conditions"]] == ["one", "two"]


async def test_schema(client: Client, api: ApiServer) -> None:
    """A CRD's schema prunes, defaults and refuses; an unknown field is an error only if Strict."""
    spec: Json = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1},
            "kind": {"type": "string", "default": "small"},
        },
    }
    api.install(
        {
            "spec": {
                "group": "test.io",
                "scope": "Namespaced",
                "names": {"plural": "things", "kind": "Thing"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "schema": {
                            "openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}
                        },
                    }
                ],
            }
        }
    )
    path = "/apis/test.io/v1/namespaces/default/things"
    thing = {"apiVersion": "test.io/v1", "kind": "Thing", "metadata": {"name": "a"}}
    _, made = await client.ask("POST", path, {**thing, "spec": {"size": 2, "extra": 1}})
    assert made["spec"] == {"size": 2, "kind": "small"}
    thing["metadata"] = {"name": "b"}
    status, refusal = await client.ask("POST", path, {**thing, "spec": {"size": 0}})
    assert (status, refusal["reason"]) == (422, "Invalid")
    status, refusal = await client.ask(
        "POST", path, {**thing, "spec": {"size": 2, "extra": 1}}, fieldValidation="Strict"
    )
    assert (status, 'unknown field "spec.extra"' in refusal["message"]) == (400, True)


async def test_access(client: Client, api: ApiServer) -> None:
    """No token is 401; a token whose role does not allow it is 403, in a real server's words."""
    role = {
        "kind": "Role",
        "metadata": {"name": "r"},
        "rules": [
            {
                "apiGroups": ["inference.networking.x-k8s.io"],
                "resources": ["inferencemodels"],
                "verbs": ["list"],
            }
        ],
    }
    api.access.users["test-token"] = User("someone", rules=rules_of([role]))
    assert (await client.ask("GET", MODELS))[0] == 200
    status, body = await client.ask("DELETE", f"{MODELS}/a")
    assert status == 403
    assert 'User "someone" cannot delete resource "inferencemodels"' in body["message"]
    api.access.users.clear()
    assert (await client.ask("GET", MODELS))[0] == 401


async def test_missing_resource_and_discovery(client: Client, api: ApiServer) -> None:
    """A kind that is not installed is a plain 404, and discovery does not name it."""
    _, found = await client.ask("GET", "/apis/inference.networking.x-k8s.io/v1alpha2")
    assert "inferencemodels" in {row["name"] for row in found["resources"]}
    api.uninstall("inferencemodels", "inference.networking.x-k8s.io")
    assert (await client.ask("GET", MODELS)) == (404, {"text": "404 page not found\n"})


async def test_down_and_up(client: Client, api: ApiServer) -> None:
    """A server that comes back listens on the same port, with the same objects."""
    api.put(model("a"))
    await api.down()
    with pytest.raises(aiohttp.ClientError):
        await client.ask("GET", MODELS)
    await api.up()
    assert (await client.ask("GET", f"{MODELS}/a"))[0] == 200


async def test_failures(client: Client, api: ApiServer) -> None:
    """A fault hits the requests it names, as often as it says."""
    api.faults.fail(429, verb="list", plural="inferencemodels", times=1, retry_after_s=7)
    status, body = await client.ask("GET", MODELS)
    assert (status, body["details"]["retryAfterSeconds"]) == (429, 7)
    assert (await client.ask("GET", MODELS))[0] == 200


async def test_reviews(client: Client, api: ApiServer) -> None:
    """TokenReview knows the tokens, SubjectAccessReview what their users may do."""
    body: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    _, good = await client.ask("POST", path, {**body, "spec": {"token": api.token}})
    _, bad = await client.ask("POST", path, {**body, "spec": {"token": "?"}})
    assert (good["status"]["authenticated"], bad["status"]["authenticated"]) == (True, False)
