"""TLS, as real clients speak it, and certificates that change."""

import asyncio
import contextlib
import datetime
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epp.extproc.transports.limits import Limits, TransportStats
from epp.extproc.transports.server import Server
from epp.extproc.transports.tls import (
    CertificateError,
    Certificates,
    from_folder,
    self_signed,
)
from tests.fakes import raw_http2
from tests.fakes.echo import ECHO, EchoApp
from tests.fakes.raw_http2 import message
from tests.loopback.transports.harness import Mode, Serve, eventually

NOW = datetime.datetime.now(datetime.UTC)


def write_pair(folder: Path, name: str = "localhost") -> bytes:
    """Make a certificate with its key in `folder`; returns the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(hours=1))
        .not_valid_after(NOW + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    folder.mkdir(exist_ok=True)
    (folder / "tls.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(pem))
    return certificate.public_bytes(pem)


def trusting(certificate: bytes | None = None, *protocols: str) -> ssl.SSLContext:
    """A client's context that trusts this certificate only, or anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if certificate is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=certificate.decode())
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


async def served(server: Server) -> bytes:
    """The certificate that a new connection gets."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting(None, "h2"))
    tls = writer.get_extra_info("ssl_object")
    assert tls.selected_alpn_protocol() == "h2"
    certificate = ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True)).encode()
    writer.transport.abort()
    return certificate


def channel(server: Server, mode: Mode, root: bytes, *client: bytes) -> grpc.aio.Channel:
    """A real gRPC client that trusts `root`."""
    key, chain = client or (None, None)
    credentials = grpc.ssl_channel_credentials(root, key, chain)
    options = [("grpc.ssl_target_name_override", "localhost")]
    if "|" in mode.authority:  # any other has to be the name in the certificate
        options.append(("grpc.default_authority", mode.authority))
    return grpc.aio.secure_channel(f"127.0.0.1:{server.port}", credentials, options=options)


async def ask(over: grpc.aio.Channel, *messages: bytes) -> list[bytes]:
    return [each async for each in over.stream_stream(ECHO)(iter(messages))]


@asynccontextmanager
async def watched(certificate: Certificates) -> AsyncIterator[None]:
    """Run the watch as the program does."""
    task = asyncio.ensure_future(certificate.watch())
    await asyncio.sleep(0.3)  # until the folder is being watched; there is nothing to see of it
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_self_signed_certificate(serve: Serve, mode: Mode) -> None:
    """Without a certificate there is one, good for localhost, and gRPC clients can use it."""
    server = await serve(EchoApp(), mode, tls=self_signed(NOW, None, TransportStats()))
    root = await served(server)
    async with channel(server, mode, root) as over:
        assert await ask(over, b"x", b"y" * 300_000) == [b"x", b"y" * 300_000]
    names = x509.load_pem_x509_certificate(root).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == ["localhost"]


async def test_rotation_under_traffic(serve: Serve, mode: Mode, tmp_path: Path) -> None:
    """New connections get the new certificate, and not one call of the old ones fails."""
    stats = TransportStats()
    old = write_pair(tmp_path)
    certificate = from_folder(tmp_path, None, stats)
    server = await serve(EchoApp(), mode, tls=certificate, stats=stats)
    async with channel(server, mode, old) as over, watched(certificate):
        call = over.stream_stream(ECHO)()
        stop = asyncio.Event()

        async def traffic() -> int:
            count = 0
            while not stop.is_set():
                await call.write(b"%d" % count)
                assert await call.read() == b"%d" % count
                assert await ask(over, b"x") == [b"x"]
                count += 1
            return count

        running = asyncio.ensure_future(traffic())
        for _ in range(3):
            new = write_pair(tmp_path)
            async with asyncio.timeout(10):
                while await served(server) != new:
                    await asyncio.sleep(0.02)
        stop.set()
        assert await running > 0
        async with channel(server, mode, new) as fresh:
            assert await ask(fresh, b"x") == [b"x"]
    assert stats.certificate_reloads_total >= 3


async def test_a_mounted_secret_is_swapped(serve: Serve, mode: Mode, tmp_path: Path) -> None:
    """Kubernetes replaces the symlink `..data`; the files' own names never change."""
    mount = tmp_path / "mount"
    mount.mkdir()
    old = write_pair(mount / "..1")
    (mount / "..data").symlink_to("..1")
    for name in ("tls.crt", "tls.key"):
        (mount / name).symlink_to(f"..data/{name}")
    certificate = from_folder(mount, None, TransportStats())
    server = await serve(EchoApp(), mode, tls=certificate)
    assert await served(server) == old
    async with watched(certificate):
        new = write_pair(mount / "..2")
        (mount / "..data_tmp").symlink_to("..2")
        os.rename(mount / "..data_tmp", mount / "..data")
        async with asyncio.timeout(10):
            while await served(server) != new:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("broken", ["no key", "other key", "garbage", "empty", "no certificate"])
async def test_a_broken_pair_is_not_served(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The pair before it is kept, the reason is logged once, and the next good pair is taken."""
    stats = TransportStats()
    write_pair(tmp_path)
    certificate = from_folder(tmp_path, None, stats)
    before = certificate.context()
    match broken:
        case "no key":
            (tmp_path / "tls.key").unlink()
        case "no certificate":
            (tmp_path / "tls.crt").unlink()
        case "other key":
            write_pair(tmp_path / "other")
            (tmp_path / "tls.key").write_bytes((tmp_path / "other" / "tls.key").read_bytes())
        case "garbage":
            (tmp_path / "tls.crt").write_bytes(b"\xff\0not PEM")
        case _:
            (tmp_path / "tls.crt").write_bytes(b"")
    for _ in range(3):
        assert certificate.reload() is False

    assert certificate.context() is before
    assert stats.certificate_errors_total == 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "tls.crt" in caplog.text or "tls.key" in caplog.text
    assert "PRIVATE" not in caplog.text
    write_pair(tmp_path)
    assert certificate.reload() is True
    assert certificate.context() is not before


def test_an_encrypted_key_is_refused(tmp_path: Path) -> None:
    """It is refused with the reason, and nobody is asked for a password."""
    write_pair(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    encryption = serialization.BestAvailableEncryption(b"secret")
    (tmp_path / "tls.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    with pytest.raises(CertificateError, match="unencrypted"):
        from_folder(tmp_path, None, TransportStats())


def test_a_start_without_files_names_them(tmp_path: Path) -> None:
    """The first pair must be there; what is missing is named."""
    with pytest.raises(CertificateError, match=r"tls\.crt"):
        from_folder(tmp_path, None, TransportStats())
    write_pair(tmp_path)
    with pytest.raises(CertificateError, match=r"ca\.crt"):
        from_folder(tmp_path, tmp_path / "ca.crt", TransportStats())
    with pytest.raises(CertificateError, match=r"ca\.crt"):
        self_signed(NOW, tmp_path / "ca.crt", TransportStats())


@pytest.mark.parametrize("is_ours", [False, True])
async def test_clients_must_show_a_certificate(
    serve: Serve, mode: Mode, tmp_path: Path, is_ours: bool
) -> None:
    """With a client CA, who shows no certificate of it gets no call, whosever our own pair is."""
    root = write_pair(tmp_path / "server")
    ours, other = tmp_path / "client", tmp_path / "other"
    write_pair(ours, "gateway")
    write_pair(other, "somebody")
    stats, client_ca = TransportStats(), ours / "tls.crt"
    if is_ours:
        tls = self_signed(NOW, client_ca, stats)
    else:
        tls = from_folder(tmp_path / "server", client_ca, stats)
    server = await serve(EchoApp(), mode, tls=tls)
    if is_ours:
        root = await served(server)
    pair = [(ours / name).read_bytes() for name in ("tls.key", "tls.crt")]
    async with channel(server, mode, root, *pair) as over:
        assert await ask(over, b"x") == [b"x"]
    stranger = [(other / name).read_bytes() for name in ("tls.key", "tls.crt")]
    for client in ([], stranger):
        async with channel(server, mode, root, *client) as over:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await over.unary_unary(ECHO)(b"x")
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    await eventually(lambda: server.stats.tls_failures_total >= 2)


async def test_plaintext_to_a_tls_port(serve: Serve, mode: Mode) -> None:
    """The connection goes; it is counted; nobody else notices; nothing is logged above debug."""
    server = await serve(EchoApp(), mode, tls=self_signed(NOW, None, TransportStats()))
    root = await served(server)
    async with channel(server, mode, root) as over:
        assert await ask(over, b"x") == [b"x"]
        for noise in (raw_http2.PREFACE + b"\0" * 90, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 999):
            async with raw_http2.connect(server.port) as peer:
                peer.write(noise)
                with contextlib.suppress(ConnectionError):
                    async with asyncio.timeout(10):
                        await peer.reader.read()
        await eventually(lambda: server.stats.tls_failures_total >= 3)
        assert await ask(over, b"x") == [b"x"]


async def test_a_silent_tls_client(serve: Serve, mode: Mode) -> None:
    """Who never begins the handshake is disconnected, and counts as open until then."""
    limits = Limits(handshake_timeout_s=0.2)
    server = await serve(
        EchoApp(), mode, tls=self_signed(NOW, None, TransportStats()), limits=limits
    )
    async with raw_http2.connect(server.port) as peer:
        await eventually(lambda: server.stats.connections == 1)
        async with asyncio.timeout(10):
            assert await peer.reader.read() == b""
        await eventually(lambda: server.stats.connections == 0)


@pytest.mark.parametrize("protocols", [(), ("h2",), ("h2", "http/1.1")])
async def test_raw_http2_over_tls(serve: Serve, mode: Mode, protocols: tuple[str, ...]) -> None:
    """With ALPN and, as old clients do, without."""
    server = await serve(EchoApp(), mode, tls=self_signed(NOW, None, TransportStats()))
    async with raw_http2.connect(server.port, trusting(None, *protocols)) as peer:
        peer.authority = mode.authority
        await peer.greet()
        stream = peer.open(ECHO)
        peer.data(stream, message(b"x" * 40_000)[:16_000])
        peer.data(stream, message(b"x" * 40_000)[16_000:32_000])
        peer.data(stream, message(b"x" * 40_000)[32_000:], end=True)
        fields, data = await peer.response(stream)
        assert (fields["grpc-status"], data) == ("0", message(b"x" * 40_000))


async def test_drain_over_tls(serve: Serve, mode: Mode) -> None:
    """Draining ends TLS connections as well, after their calls."""
    server = await serve(EchoApp(), mode, tls=self_signed(NOW, None, TransportStats()))
    root = await served(server)
    async with channel(server, mode, root) as over:
        call = over.stream_stream(ECHO)()
        await call.write(b"x")
        assert await call.read() == b"x"
        drain = asyncio.ensure_future(server.drain(20))
        await asyncio.sleep(0.05)
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.OK
        assert await drain is True
