"""The model registry over REST: v1alpha3 and v1alpha1, told apart by asking.

Every answer is either whole or an error.  Lists are read to their end or not at all, a name that
was searched for is compared, and a 404 stays a 404: what it means is for the caller, who knows
that a registry without its database says the same.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

from registry import wire
from registry.errors import (
    RegistryConflict,
    RegistryError,
    RegistryMalformed,
    RegistryNotFound,
    RegistryRefused,
    RegistryUnavailable,
)
from registry.model import (
    Artifact,
    Environment,
    Intent,
    Json,
    Record,
    RecordState,
    Version,
)
from registry.pages import PAGE_SIZE, Pages
from registry.rest import Address, Rest, connect_rest

API_VERSIONS = ("v1alpha3", "v1alpha1")

T = TypeVar("T")


@asynccontextmanager
async def connect(address: Address) -> AsyncIterator["RegistryClient"]:
    """Open a session with a registry."""
    async with connect_rest(address) as rest:
        yield RegistryClient(rest)


class RegistryClient:
    """One registry.  `version` is known after the first call."""

    def __init__(self, rest: Rest) -> None:
        self.rest = rest
        self.version: str | None = None
        self.can_patch_records: bool | None = None

    async def is_healthy(self) -> bool | None:
        """Return what `/readyz/health` says; None where the registry does not have it."""
        try:
            await self.rest.send("GET", "/readyz/health", expect_json=False)
        except RegistryNotFound:
            return None
        except RegistryError:
            return False
        return True

    async def environment(self, name: str) -> Environment | None:
        """Return the environment of that name; None only if a whole list lacks it."""
        return next((item for item in await self.environments() if item.name == name), None)

    async def environments(self) -> list[Environment]:
        """Return every ServingEnvironment."""
        try:
            return await self._list("serving_environments", wire.read_environment)
        except RegistryNotFound:
            self.version = None  # this list always exists: it may be another version by now
            raise

    async def create_environment(self, name: str) -> Environment:
        """Create an environment, or return the one that somebody created meanwhile."""
        body = {"name": name, self._key("externalId"): name}
        try:
            return wire.read_environment(await self._call("POST", "serving_environments", body))
        except (RegistryConflict, RegistryUnavailable):
            found = await self.environment(name)
            if found is None:
                raise
            return found

    async def intents(self, environment_id: str) -> list[Intent]:
        """Return every InferenceService of an environment."""
        path = f"serving_environments/{quote(environment_id, safe='')}/inference_services"
        return await self._list(path, wire.read_intent)

    async def versions(self, model_id: str) -> list[Version]:
        """Return every version of a registered model."""
        path = f"registered_models/{quote(model_id, safe='')}/versions"
        return await self._list(path, wire.read_version)

    async def artifacts(self, version_id: str) -> list[Artifact]:
        """Return the model artifacts of a version."""
        path = f"model_versions/{quote(version_id, safe='')}/artifacts"
        found = await self._list(path, wire.read_artifact)
        return [artifact for artifact in found if artifact is not None]

    async def records(self, intent_id: str) -> list[Record]:
        """Return the ServeModel records of an InferenceService."""
        return await self._list(_serves(intent_id), wire.read_record)

    async def create_record(
        self,
        intent_id: str,
        name: str,
        version_id: str,
        state: RecordState,
        properties: Mapping[str, str],
    ) -> Record:
        """Append a record, or return the one of that name: a retry finds its own work done."""
        body = {
            "name": name,
            "modelVersionId": version_id,
            "lastKnownState": state.value,
            "customProperties": wire.write_properties(properties),
        }
        try:
            return wire.read_record(await self._call("POST", _serves(intent_id), body))
        except (RegistryConflict, RegistryUnavailable):
            # Old servers answer a duplicate with 500; and a lost answer may hide a success.
            found = next(
                (item for item in await self.records(intent_id) if item.name == name), None
            )
            if found is None:
                raise
            return found

    async def patch_record(
        self, intent_id: str, record_id: str, state: RecordState, properties: Mapping[str, str]
    ) -> Record | None:
        """Update a record in place; None where the server cannot, which is remembered."""
        if self.can_patch_records is False:
            return None
        body = {
            "lastKnownState": state.value,
            "customProperties": wire.write_properties(properties),
        }
        path = f"{_serves(intent_id)}/{quote(record_id, safe='')}"
        try:
            answer = await self._call("PATCH", path, body)
        except (RegistryNotFound, RegistryRefused):
            if self.can_patch_records:
                raise  # it could before, so this is an outage
            self.can_patch_records = False
            return None
        self.can_patch_records = True
        return wire.read_record(answer)

    async def set_desired_state(
        self, intent_id: str, deployed: bool, version_id: str | None = None
    ) -> Intent:
        """Order an intent served or not.

        The state always goes along: servers fill in DEPLOYED where a PATCH leaves it out.
        """
        path = f"inference_services/{quote(intent_id, safe='')}"
        current = await self._call("GET", path)
        key = "state" if "state" in current and "desiredState" not in current else "desiredState"
        body: Json = {key: "DEPLOYED" if deployed else "UNDEPLOYED"}
        if version_id is not None:
            body["modelVersionId"] = version_id
        return wire.read_intent(await self._call("PATCH", path, body))

    async def detect(self) -> str:
        """Return the API version that this registry speaks."""
        if self.version is None:
            for version in API_VERSIONS:
                try:
                    wire.read_page(
                        await self.rest.send("GET", _path(version, "serving_environments"))
                    )
                except RegistryNotFound:
                    continue
                self.version = version
                break
            else:
                raise RegistryUnavailable(
                    f"{self.rest.address.url} speaks none of {', '.join(API_VERSIONS)}: "
                    "is this the registry, and is its database up?"
                )
        return self.version

    def _key(self, name: str) -> str:
        return name.replace("Id", "ID") if self.version == "v1alpha1" else name

    async def _list(self, path: str, read: Callable[[Json], T]) -> list[T]:
        pages = Pages()
        while pages.more:
            query = {"pageSize": str(PAGE_SIZE), "orderBy": "ID", "sortOrder": "ASC"}
            if pages.token:
                query["nextPageToken"] = pages.token
            answer = await self._call("GET", path, query=query)
            try:
                pages.add(answer)
            except RegistryMalformed as error:
                raise RegistryMalformed(f"GET {path}: {error}") from error
        return [read(item) for item in pages.items]

    async def _call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        version = await self.detect()
        return await self.rest.send(method, _path(version, path), body, query)


def _path(version: str, path: str) -> str:
    return f"/api/model_registry/{version}/{path}"


def _serves(intent_id: str) -> str:
    return f"inference_services/{quote(intent_id, safe='')}/serves"
