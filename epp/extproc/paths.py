"""Several services on one port."""

from collections.abc import Mapping

from epp.extproc.calls import Application, Call, Metadata, Push


class Services:
    """An application made of others, by the full name of the service that each one is."""

    def __init__(self, services: Mapping[str, Application]) -> None:
        self._services = dict(services)

    def open(self, path: str, metadata: Metadata, push: Push) -> Call | None:
        """Begin a call of `/package.Service/Method` with the service's own application."""
        application = self._services.get(path[1 : path.rfind("/")])
        return None if application is None else application.open(path, metadata, push)
