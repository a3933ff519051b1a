"""A paged list, read whole or not at all.  Pure."""

from typing import Any

from registry.errors import RegistryMalformed
from registry.model import Json
from registry.wire import read_page

PAGE_SIZE = 100  # the most that the oldest servers give
SMALLEST_PAGE = 20  # and what they give when they do not listen
MAX_PAGES = 10_000


class Pages:
    """The pages of one list, and the doubt whether they are all.

    Old servers do not end with an empty token but begin again.  Coming back to the very first item
    after at least two pages, or after one that no server would have cut, is such an end; anything
    else that repeats is a server going in circles, and then nobody knows what was left out.
    """

    def __init__(self) -> None:
        self.items: list[Json] = []
        self.token = ""
        self.more = True
        self._ids: set[str] = set()
        self._sizes: list[int] = []

    def add(self, answer: Any) -> None:
        """Take one page."""
        items, token = read_page(answer)
        ids = [str(item.get("id")) for item in items]
        if self._ids.intersection(ids):
            if not self._is_round(ids):
                raise RegistryMalformed("the same page comes again: the list cannot be read whole")
            self.more = False
            return
        if len(set(ids)) != len(ids) or len(self._sizes) >= MAX_PAGES:
            raise RegistryMalformed("the pages do not end, or hold an object twice")
        self._ids.update(ids)
        self._sizes.append(len(items))
        self.items += items
        self.more = bool(token) and (token != self.token or bool(items))
        self.token = token

    def _is_round(self, ids: list[str]) -> bool:
        back = ids[0] == str(self.items[0].get("id"))
        return back and (len(self._sizes) > 1 or self._sizes[0] < SMALLEST_PAGE)
