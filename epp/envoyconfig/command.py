"""`epp envoy-config`: the options on the command line, the YAML on standard output."""

from pathlib import Path
from typing import Annotated

import typer

from console import fail
from epp.envoyconfig.bootstrap import render
from epp.envoyconfig.options import BodyMode, EndpointMode, EnvoyOptions, OptionError

DEFAULTS = EnvoyOptions()


def envoy_config(  # one argument for each flag
    endpoint: Annotated[
        EndpointMode, typer.Option(help="How Envoy turns the picked address into a connection.")
    ] = DEFAULTS.endpoint,
    pool: Annotated[
        list[str] | None,
        typer.Option(help="NAMESPACE/NAME of a pool, repeatable; for --endpoint override-host."),
    ] = None,
    eds_dir: Annotated[
        str,
        typer.Option(help="Where the picker writes its EDS files; for --endpoint override-host."),
    ] = DEFAULTS.eds_dir,
    request_body: Annotated[
        BodyMode, typer.Option("--request-body", "--body-mode", help="How the picker sees it.")
    ] = DEFAULTS.request_body,
    response_body: Annotated[
        BodyMode,
        typer.Option(help="How the picker sees a response; none = it never sees responses."),
    ] = DEFAULTS.response_body,
    picker: Annotated[
        str, typer.Option(help="HOST:PORT of the picker; IPv6 in brackets.")
    ] = f"{DEFAULTS.picker_host}:{DEFAULTS.picker_port}",
    picker_tls: Annotated[bool, typer.Option(help="TLS to the picker.")] = True,
    picker_ca: Annotated[
        str | None, typer.Option(help="CA file that the picker's certificate must come from.")
    ] = None,
    picker_health_check: Annotated[
        bool, typer.Option(help="Ask the picker over gRPC whether it is ready.")
    ] = True,
    authority: Annotated[
        str | None, typer.Option(help="The :authority of the calls to the picker.")
    ] = None,
    bind_namespace: Annotated[
        str | None, typer.Option(help="Bind this listener to a namespace (x-epp-namespace).")
    ] = None,
    bind_pool: Annotated[
        str | None, typer.Option(help="Bind this listener to a pool (x-epp-pool).")
    ] = None,
    listener_host: Annotated[str, typer.Option()] = DEFAULTS.listener_host,
    listener_port: Annotated[int, typer.Option(min=0, max=65535)] = DEFAULTS.listener_port,
    admin_port: Annotated[
        int, typer.Option(min=-1, max=65535, help="On 127.0.0.1; -1 = no admin interface.")
    ] = DEFAULTS.admin_port,
    failure_mode_allow: Annotated[
        bool,
        typer.Option(
            help="Send requests on without a pick when the picker is away; Envoy heeds it only"
            " where --request-body is not full-duplex."
        ),
    ] = DEFAULTS.failure_mode_allow,
    message_timeout_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="How long Envoy waits for one answer; by default 30."),
    ] = DEFAULTS.message_timeout_s,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Circuit breakers, of every cluster.")
    ] = DEFAULTS.max_requests,
    buffer_limit_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="Per connection; by default 16 MiB if a body is buffered."),
    ] = None,
    access_log: Annotated[
        str, typer.Option(help="File of the access log, one JSON line a request; '' = none.")
    ] = DEFAULTS.access_log or "",
    graceful_close: Annotated[
        bool, typer.Option(help="End calls to the picker without a reset.")
    ] = DEFAULTS.graceful_close,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write here, not to standard output.")
    ] = None,
) -> None:
    """Print a complete Envoy configuration that asks this picker."""
    try:
        picker_host, picker_port = parse_address(picker)
        options = EnvoyOptions(
            endpoint=endpoint,
            pools=tuple(pool or ()),
            eds_dir=eds_dir,
            request_body=request_body,
            response_body=response_body,
            picker_host=picker_host,
            picker_port=picker_port,
            picker_tls=picker_tls,
            picker_ca_file=picker_ca,
            picker_health_check=picker_health_check,
            authority=authority,
            bind_namespace=bind_namespace,
            bind_pool=bind_pool,
            listener_host=listener_host,
            listener_port=listener_port,
            admin_port=admin_port,
            failure_mode_allow=failure_mode_allow,
            message_timeout_s=message_timeout_s,
            max_requests=max_requests,
            buffer_limit_bytes=buffer_limit_bytes,
            access_log=access_log or None,
            graceful_close=graceful_close,
        )
    except OptionError as error:
        fail(str(error))
    text = render(options)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not host or (":" in host and not bracketed):
        raise OptionError(f"--picker {text}: not HOST:PORT (an IPv6 address stands in brackets)")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise OptionError(f"--picker {text}: the port is not a number from 1 to 65535")
    return host, int(port)
