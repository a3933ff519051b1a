"""Content-encodings are undone exactly, within a bound, and damage is the client's 400."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.errors import BodyTooLarge, InvalidJson, RequestError, UnsupportedEncoding
from epp.routing.encoding import decoded

MIB = 1024 * 1024


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, list[Callable[[bytes], bytes]]] = {
    "gzip": [gzip.compress],
    "x-gzip": [gzip.compress],
    "deflate": [zlib.compress, raw_deflate, lambda data: zlib.compress(data, 0)],
}
EVERY = [(name, pack) for name, packs in PACKERS.items() for pack in packs]


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(EVERY))
def test_what_was_packed_comes_back(
    data: bytes, encoding: tuple[str, Callable[[bytes], bytes]]
) -> None:
    """gzip, and deflate both as the standard has it and as some clients send it."""
    name, pack = encoding

    assert decoded(pack(data), name, limit=200) == data
    assert decoded(pack(data), f" {name.upper()} ", limit=200) == data


@pytest.mark.parametrize("name", ["", "identity", " Identity , identity", ","])
def test_no_encoding_leaves_the_body(name: str) -> None:
    """The very same bytes, not a copy."""
    body = b'{"model":"m"}' * 100

    assert decoded(body, name, limit=1) is body


@pytest.mark.parametrize(
    "name", ["br", "zstd", "compress", "gzip, br", "br,gzip", "gzip;q=1", "aws-chunked", "*"]
)
def test_other_encodings_are_415(name: str) -> None:
    """What can be sent instead is said."""
    with pytest.raises(UnsupportedEncoding, match="gzip, deflate"):
        decoded(gzip.compress(b"{}"), name, limit=100)


def test_a_long_name_is_not_repeated_whole() -> None:
    """A client cannot make an error as long as it likes."""
    with pytest.raises(UnsupportedEncoding) as caught:
        decoded(b"x", "z" * 10_000, limit=100)

    assert len(caught.value.message) < 200


def test_layers_are_undone_from_the_last() -> None:
    """`deflate, gzip` was deflated first; two layers are read and three are not."""
    body = gzip.compress(zlib.compress(b"{}"))

    assert decoded(body, "deflate, gzip", limit=100) == b"{}"
    assert decoded(body, "deflate, identity, gzip", limit=100) == b"{}"
    with pytest.raises(UnsupportedEncoding, match="More than 2"):
        decoded(gzip.compress(body), "deflate, gzip, gzip", limit=100)


def test_the_limit_holds_in_each_layer() -> None:
    """The inner packing may itself be the bomb's first stage."""
    body = gzip.compress(gzip.compress(b"0" * 2 * MIB))

    with pytest.raises(BodyTooLarge):
        decoded(body, "gzip, gzip", limit=MIB)


# --- gzip members -------------------------------------------------------------------------------


def test_members_are_joined() -> None:
    """gzip files may be concatenated."""
    assert decoded(gzip.compress(b'{"a"') + gzip.compress(b":1}"), "gzip", limit=7) == b'{"a":1}'


def test_the_limit_counts_all_members() -> None:
    """Many small members are no way around it."""
    with pytest.raises(BodyTooLarge):
        decoded(gzip.compress(b"x" * 5) * 3, "gzip", limit=14)


def test_the_number_of_members_is_bounded() -> None:
    """Each member costs a look at all that follows it, so there may be 64."""
    assert decoded(gzip.compress(b"") * 64, "gzip", limit=1) == b""
    with pytest.raises(BodyTooLarge, match="64"):
        decoded(gzip.compress(b"") * 65, "gzip", limit=1)


# --- bombs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "pack"), EVERY)
@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000])
def test_the_limit_is_exact(name: str, pack: Callable[[bytes], bytes], size: int) -> None:
    """As many bytes as allowed pass, one more does not."""
    body = pack(b"x" * size)

    if size <= 100:
        assert len(decoded(body, name, limit=100)) == size
    else:
        with pytest.raises(BodyTooLarge, match="100 bytes"):
            decoded(body, name, limit=100)


@pytest.mark.parametrize(("name", "pack"), EVERY[:4])
def test_a_bomb_costs_no_more_memory_than_the_limit(
    name: str, pack: Callable[[bytes], bytes]
) -> None:
    """16 MiB of zeros in a few KiB: refused while a little over one MiB is held."""
    bomb = pack(bytes(16 * MIB))
    assert len(bomb) < MIB // 16

    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            decoded(bomb, name, limit=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 * MIB


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "pack"), EVERY)
def test_a_body_cut_anywhere_is_damaged(name: str, pack: Callable[[bytes], bytes]) -> None:
    """No beginning is taken for the whole (nothing at all is an empty body)."""
    body = pack(b'{"model":"m","prompt":"my-prompt-is-secret"}')

    for stop in range(1, len(body)):
        with pytest.raises(InvalidJson) as caught:
            decoded(body[:stop], name, limit=1000)
        assert "secret" not in caught.value.message


@pytest.mark.parametrize(("name", "pack"), EVERY)
@pytest.mark.parametrize("junk", [b"\x00", b"junk", b"\x1f\x8b", b"{}"])
def test_what_follows_the_end_is_damage(
    name: str, pack: Callable[[bytes], bytes], junk: bytes
) -> None:
    """Two readers could see two different bodies, so neither is believed."""
    with pytest.raises(InvalidJson):
        decoded(pack(b'{"model":"m"}') + junk, name, limit=1000)


@settings(deadline=None)
@given(st.sampled_from(EVERY), st.integers(0), st.integers(1, 255))
def test_a_flipped_byte_is_damage_or_changes_nothing_we_check(
    encoding: tuple[str, Callable[[bytes], bytes]], at: int, flip: int
) -> None:
    """Nothing but a refusal or bytes within the limit comes out."""
    name, pack = encoding
    body = bytearray(pack(b'{"model":"m"}' * 5))
    body[at % len(body)] ^= flip
    try:
        data = decoded(bytes(body), name, limit=100)
    except RequestError:
        return

    assert len(data) <= 100


@given(st.binary(max_size=60), st.text(max_size=20))
def test_any_bytes_under_any_name(body: bytes, name: str) -> None:
    """No other exception."""
    try:
        decoded(body, name, limit=100)
    except RequestError:
        return
