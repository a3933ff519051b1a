"""Certificates: made at start, or read from a folder and replaced without a restart.

A context is never changed once it is in use.  A new pair makes a new context for the next
connections; those that are open live on with the one that they were made with.
"""

import datetime
import ipaddress
import logging
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

import watchfiles
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from epp.extproc.transports.limits import TransportStats

log = logging.getLogger(__name__)

CERTIFICATE, KEY = "tls.crt", "tls.key"
"""As a Kubernetes secret of the type `kubernetes.io/tls` names them."""

_DEBOUNCE_MS = 200
_LIFETIME = datetime.timedelta(days=3650)
_CLOCK_SKEW = datetime.timedelta(hours=1)


class CertificateError(Exception):
    """A certificate, key or CA bundle that cannot be used; the message names file and fix."""


Pair = tuple[bytes, bytes]
"""A certificate and its key, each as PEM."""


class Certificates:
    """What a port shows its clients, and what it asks of them.  Written by `reload` only."""

    def __init__(
        self,
        pair: Callable[[], Pair],
        folder: Path | None,
        client_ca: Path | None,
        stats: TransportStats,
    ) -> None:
        """Read everything; raises `CertificateError` if it cannot be served."""
        self._pair = pair
        self._client_ca = client_ca
        self._stats = stats
        self._folders = {each for each in (folder, client_ca and client_ca.parent) if each}
        self._contents = self._read()
        self._context = _context(*self._contents)
        self._complaint = ""

    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        return self._context

    @property
    def may_change(self) -> bool:
        """Whether anything is read from files, so that `watch` has something to do."""
        return bool(self._folders)

    async def watch(self) -> None:
        """Serve each new state of the files as soon as it stands; never returns."""
        # A mounted secret changes by one rename of a symlink in the folder, whatever the files'
        # own names are, so that every change in it counts.
        async for _ in watchfiles.awatch(*self._folders, watch_filter=None, debounce=_DEBOUNCE_MS):
            self.reload()

    def reload(self) -> bool:
        """Take the files as they are now, if they can be served; returns whether they are new."""
        try:
            contents = self._read()
            if contents == self._contents:
                self._complaint = ""
                return False
            context = _context(*contents)
        except CertificateError as error:
            self._stats.certificate_errors_total += 1
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("%s; the certificate read before is kept", error)
            return False
        self._contents, self._context, self._complaint = contents, context, ""
        self._stats.certificate_reloads_total += 1
        log.info("a new certificate is served, from %s", ", ".join(map(str, self._folders)))
        return True

    def _read(self) -> tuple[bytes, bytes, bytes | None]:
        client_ca = None if self._client_ca is None else _read_file(self._client_ca)
        return *self._pair(), client_ca


def self_signed(
    now: datetime.datetime, client_ca: Path | None, stats: TransportStats
) -> Certificates:
    """Return a certificate of our own making: encryption for gateways that verify nothing.

    Who calls can be asked for a certificate all the same.
    """
    pair = _make_pair(now)
    return Certificates(lambda: pair, None, client_ca, stats)


def from_folder(folder: Path, client_ca: Path | None, stats: TransportStats) -> Certificates:
    """Return `tls.crt` and `tls.key` of a folder."""

    def read() -> Pair:
        return _read_file(folder / CERTIFICATE), _read_file(folder / KEY)

    return Certificates(read, folder, client_ca, stats)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path}: {error.strerror or error}; put a readable PEM file there"
        ) from error


def _context(certificate: bytes, key: bytes, client_ca: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory(prefix="epp-tls-") as folder:  # ssl reads files only
        for name, content in ((CERTIFICATE, certificate), (KEY, key)):
            (Path(folder) / name).write_bytes(content)
        try:
            # The password is for a key that has one: without it OpenSSL asks on the terminal.
            context.load_cert_chain(
                Path(folder) / CERTIFICATE, Path(folder) / KEY, password=lambda: b""
            )
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(
                f"{CERTIFICATE} and {KEY} are no pair that can be served ({_why(error)}); "
                "both must be PEM, unencrypted, and belong together"
            ) from error
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cadata=client_ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(
                f"the client CA bundle cannot be read ({_why(error)}); it must be PEM certificates"
            ) from error
    return context


def _why(error: Exception) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else None) or type(error).__name__


def _make_pair(now: datetime.datetime) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "endpoint picker, self-signed")])
    addresses = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
    names = [x509.DNSName("localhost"), *(x509.IPAddress(each) for each in addresses)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(pem), private
