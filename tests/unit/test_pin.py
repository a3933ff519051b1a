"""A pin: what it accepts, what it refuses, and that nothing is lost in between."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts import Location, Pin, UsageError, parse_pin
from artifacts.pin import require_immutable

SHA = "ab" * 32
MD5 = "cd" * 16


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("s3://b/k", Pin(Location("s3", "b", "k"))),
        ("S3://b/k", Pin(Location("s3", "b", "k"))),
        ("s3://b/", Pin(Location("s3", "b", ""))),
        ("s3://b/p/", Pin(Location("s3", "b", "p/"))),
        ("s3://b//k", Pin(Location("s3", "b", "/k"))),
        ("s3://b/a%20b", Pin(Location("s3", "b", "a%20b"))),
        ("s3://b/a%3Fb%25", Pin(Location("s3", "b", "a?b%"))),
        ("s3://b/a#b", Pin(Location("s3", "b", "a#b"))),
        ("s3://b/k?versionId=v.1_-", Pin(Location("s3", "b", "k"), "v.1_-")),
        ("s3://b/k?versionId=a%2Bb+c", Pin(Location("s3", "b", "k"), "a+b+c")),
        ('s3://b/k?etag="e-2"', Pin(Location("s3", "b", "k"), etag="e-2")),
        ("s3://b/k?etag=%22e%22", Pin(Location("s3", "b", "k"), etag="e")),
        (f"s3://b/k?sha256={SHA.upper()}", Pin(Location("s3", "b", "k"), sha256=SHA)),
        (f"s3://b/k?sha256=sha256:{SHA}", Pin(Location("s3", "b", "k"), sha256=SHA)),
        (f"s3://b/k?md5={MD5}", Pin(Location("s3", "b", "k"), md5=MD5)),
        (f"s3://b/p/?sha256={SHA}", Pin(Location("s3", "b", "p/"), sha256=SHA)),
        ("file:///a/b", Pin(Location("file", "", "/a/b"))),
        ("file://localhost/a", Pin(Location("file", "", "/a"))),
        ("./m/x", Pin(Location("file", "", "./m/x"))),
    ],
)
def test_what_a_pin_means(text: str, pin: Pin) -> None:
    """Keys are literal, as `aws s3` has them; identities are normalised."""
    assert pin == parse_pin(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s3://b/k?versionID=1", "Did you mean 'versionId'?"),
        ("s3://b/k?version=1", "Did you mean 'versionId'?"),
        ("s3://b/k?sha=1", "Did you mean 'sha256'?"),
        ("s3://b/k?x-amz-meta=1", "Known are: etag, md5, sha256, versionId"),
        ("s3://b/k?", "not a key of a pin"),
        ("s3://b/k?versionId", "no usable value"),
        ("s3://b/k?versionId=", "no usable value"),
        ("s3://b/k?versionId=%00", "no usable value"),
        ("s3://b/k?versionId=%FF", "no usable value"),
        ("s3://b/k?versionId=a&versionId=a", "given twice"),
        ("s3://b/k?sha256=abc", "not 64 hexadecimal"),
        (f"s3://b/k?sha256={SHA}0", "not 64 hexadecimal"),
        (f"s3://b/k?sha256=md5:{SHA}", "not 64 hexadecimal"),
        ("s3://b/k?md5=zz", "not 32 hexadecimal"),
        ('s3://b/k?etag=W/"x"', "strong entity tag"),
        ("s3://b/k?etag=*", "strong entity tag"),
        ("s3://b/p/?versionId=1", "this is a directory"),
        ("s3://b/?etag=x", "this is a directory"),
        ("/a?versionId=1", "a local file has no versionId"),
        ("s3://", "bucket's name is missing"),
        ("s3:///k", "bucket's name is missing"),
        ("s3://b c/k", "bucket's name is missing"),
        ("s3://bucket", "Write s3://bucket/"),
        ("file://host/a", "absolute path"),
        ("", "empty"),
        ("s3://b/\0", "NUL"),
        ("gs://b/k", "gs://"),
        ("hf://org/model", "hf://"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    """What cannot be a pin is refused with exit 2 and what to do instead, never ignored."""
    with pytest.raises(UsageError) as refused:
        parse_pin(text)

    assert words in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("text", ["s3://AK:SECRET@b/k", "gs://AK:SECRET@b/k"])
def test_credentials_in_a_uri_are_refused_and_not_repeated(text: str) -> None:
    """A secret in a URI ends up in logs: it is refused, by a message without it."""
    with pytest.raises(UsageError) as refused:
        parse_pin(text)

    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "parameters", "pin"),
    [
        ("s3://b/k", {"versionId": "v"}, Pin(Location("s3", "b", "k"), "v")),
        ("s3://b/k?versionId=v", {"versionId": "v"}, Pin(Location("s3", "b", "k"), "v")),
        (
            "s3://b/k",
            {"verification.digest": f"sha256:{SHA}", "bucket": "b", "type": "s3"},
            Pin(Location("s3", "b", "k"), sha256=SHA),
        ),
    ],
)
def test_parameters_pin_as_the_query_does(
    text: str, parameters: dict[str, object], pin: Pin
) -> None:
    """`storage.parameters` and the URI are two spellings of one pin."""
    assert pin == parse_pin(text, parameters)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"versionID": "v"}, "Did you mean 'versionId'?"),
        ({"versionId": "w"}, "given twice, and differently"),
        ({"versionId": 7}, "no usable value"),
        ({"sha256": SHA, "verification.digest": f"sha256:{'0' * 64}"}, "differently"),
    ],
)
def test_parameters_that_are_refused(parameters: dict[str, object], words: str) -> None:
    """A parameter that nobody knows, or that contradicts the URI, is refused."""
    with pytest.raises(UsageError) as refused:
        parse_pin("s3://b/k?versionId=v", parameters)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "immutable"),
    [
        ("s3://b/k", False),
        ("s3://b/k?versionId=null", False),
        ("s3://b/k?versionId=null&etag=e", True),
        (f"s3://b/k?versionId=null&sha256={SHA}", True),
        ("s3://b/k?versionId=v", True),
        ("s3://b/k?etag=e", True),
        (f"s3://b/k?md5={MD5}", True),
        ("s3://b/p/", False),
        (f"s3://b/p/?sha256={SHA}", True),
    ],
)
def test_what_pins_and_what_floats(text: str, immutable: bool) -> None:
    """`null` can be overwritten, so alone it is no pin; everything else with an identity is."""
    pin = parse_pin(text)

    assert immutable == pin.is_immutable
    require_immutable(pin, allow_floating=True)
    if not immutable:
        with pytest.raises(UsageError):
            require_immutable(pin, allow_floating=False)


def test_the_identity_as_kserve_spells_it() -> None:
    """`parameters` and `verification` can be pasted into an InferenceService."""
    pin = parse_pin(f"s3://b/k?versionId=v&sha256={SHA}")

    assert pin.parameters == {"versionId": "v", "sha256": SHA}
    assert {"digest": f"sha256:{SHA}"} == pin.verification
    assert parse_pin("s3://b/k").verification == {}


_printable = st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable())
_versions = _printable | st.text(string.ascii_letters, min_size=1)


@given(
    key=st.text(min_size=1, max_size=40).filter(lambda key: "\0" not in key),
    version=st.none() | _versions,
    etag=st.none() | _printable.filter(lambda text: '"' not in text and text != "*"),
    sha256=st.none() | st.just(SHA),
    md5=st.none() | st.just(MD5),
)
def test_a_pin_is_what_it_spells(
    key: str, version: str | None, etag: str | None, sha256: str | None, md5: str | None
) -> None:
    """Reading what was written gives the same pin, whatever the key and the version are."""
    location = Location("s3", "b", key)
    pin = (
        Pin(location, sha256=sha256)
        if location.is_directory
        else Pin(location, version, etag, sha256, md5)
    )

    assert pin == parse_pin(str(pin))
