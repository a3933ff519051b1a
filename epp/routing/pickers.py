"""Choose among endpoints that are all allowed."""

from collections.abc import Sequence
from random import Random

from datastore.model import Endpoint


def pick_two_choices(
    endpoints: Sequence[Endpoint], *, count: int, now: float, rng: Random
) -> tuple[Endpoint, ...]:
    """Return up to `count` endpoints, best first: the less loaded of a few drawn at random.

    One endpoint costs two draws, however many there are (M. Mitzenmacher, The Power of Two
    Choices in Randomized Load Balancing, 2001); with fallbacks, one draw more for each.
    """
    total = len(endpoints)
    if total == 1:
        return (endpoints[0],)
    if count == 1:
        first = int(rng.random() * total)
        second = int(rng.random() * (total - 1))
        if second >= first:
            second += 1
        one, other = endpoints[first], endpoints[second]
        return (one,) if one.load.value(now) <= other.load.value(now) else (other,)
    drawn = rng.sample(endpoints, min(total, count + 1))
    drawn.sort(key=lambda endpoint: endpoint.load.value(now))
    return tuple(drawn[:count])
