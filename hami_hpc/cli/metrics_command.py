# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc metrics`: what the agent sees, for Prometheus. It reads the agent's state file and nothing else."""

from __future__ import annotations

import ipaddress
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import Failure, Seconds, command, config_option, os_error_text, settings_of

if TYPE_CHECKING:
    from hami_hpc.metrics.exposition import Exposition

HOST, PORT = "127.0.0.1", 9855
INSTALL = "pip install prometheus-client, or python3-prometheus-client from Debian"
TOKEN_BYTES = 4096


def parse_address(text: str) -> tuple[str, int]:
    """Reads ADDRESS:PORT, ADDRESS, PORT or :PORT; an IPv6 address with a port is in brackets. Raises ValueError."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.isdecimal():
        host, port = "", text
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host or HOST)
    number = int(port or PORT)
    if not 0 <= number <= 65535:
        raise ValueError(port)
    return str(address), number


def _address(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[str, int] | None:
    try:
        return None if text is None else parse_address(text)
    except ValueError as error:
        raise click.BadParameter(f"{text} is not ADDRESS:PORT. Example: {HOST}:{PORT}") from error


@command(
    "metrics",
    done="done, and the agent looks",
    found="done, and the agent does not look: the metrics say so (not with --listen and --every)",
)
@click.option(
    "--listen",
    callback=_address,
    metavar="ADDRESS:PORT",
    help=f"Serve /metrics and /healthz over HTTP until stopped. Without ADDRESS: {HOST}; without PORT: {PORT}.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --listen: /metrics needs the bearer token in this file.",
)
@click.option(
    "--textfile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.prom",
    help="Write the metrics to this file for node_exporter's textfile collector.",
)
@click.option(
    "--every",
    type=Seconds(1, 86400),
    metavar="SECONDS",
    help="With --textfile: again and again until stopped.",
)
@config_option
def metrics(
    listen: tuple[str, int] | None,
    token_file: Path | None,
    textfile: Path | None,
    every: float | None,
    config: Path | None,
) -> None:
    """What the agent sees of this node's GPUs and jobs, for Prometheus. Run it as root or in the group of the agent's
    state file. Without options it prints the metrics.
    """
    _check(listen, token_file, textfile, every)
    try:
        from hami_hpc.metrics.exposition import expose
    except ModuleNotFoundError as error:
        raise Failure(f"metrics needs {error.name}, which is missing: {INSTALL}") from error
    settings = settings_of(config)
    run_dir, state_dir = settings.run_dir, settings.state_dir
    if listen is not None:
        _serve(listen, _token(token_file), _Noting(lambda: expose(run_dir, state_dir)))
    elif textfile is not None and every is not None:
        _write_again(textfile, every, _Noting(lambda: expose(run_dir, state_dir)))
    else:
        _print_or_write(textfile, expose(run_dir, state_dir))


def _check(listen: object, token_file: object, textfile: Path | None, every: object) -> None:
    if listen is not None and textfile is not None:
        raise click.UsageError("--listen and --textfile cannot be combined")
    if token_file is not None and listen is None:
        raise click.UsageError("--token-file needs --listen")
    if every is not None and textfile is None:
        raise click.UsageError("--every needs --textfile")
    if textfile is not None and textfile.suffix != ".prom":
        raise click.UsageError(f"{textfile}: node_exporter reads only files whose names end with .prom")


def _print_or_write(textfile: Path | None, exposition: Exposition) -> None:
    from hami_hpc.metrics import textfile as file
    from hami_hpc.metrics.samples import Status

    if textfile is None:
        click.echo(exposition.text.decode(), nl=False)
    else:
        file.write(textfile, exposition.text)
    if exposition.status is Status.UNREADABLE:
        raise Failure(exposition.problem)
    if exposition.status is not Status.LOOKING:
        click.echo(exposition.problem, err=True)
        raise click.exceptions.Exit(ExitCode.FOUND)


class _Noting:
    """Returns the text of each exposition, and says on standard error when the agent's status has changed."""

    def __init__(self, make: Callable[[], Exposition]) -> None:
        self._make, self._status = make, ""

    def __call__(self) -> bytes:
        exposition = self._make()
        if exposition.status != self._status:
            self._status = exposition.status
            print(exposition.problem or "the agent looks", file=sys.stderr, flush=True)
        return exposition.text


def _serve(address: tuple[str, int], token: str, make_text: Callable[[], bytes]) -> None:
    from hami_hpc.metrics.server import Server

    try:
        server = Server(*address, make_text, token)
    except OSError as error:
        raise Failure(f"cannot listen on {address[0]} port {address[1]}: {error.strerror}") from error
    signal.signal(signal.SIGTERM, _stop)
    host, port = server.address
    print(f"listening on {f'[{host}]' if ':' in host else host}:{port}", file=sys.stderr, flush=True)
    make_text()  # says how the agent is
    _until_stopped(server.serve)


def _write_again(path: Path, seconds: float, make_text: Callable[[], bytes]) -> None:
    from hami_hpc.metrics import textfile as file

    def write_again() -> None:
        file.write(path, make_text())  # what is wrong from the beginning is an error
        problem = ""
        while True:
            time.sleep(seconds)
            before = problem
            try:
                file.write(path, make_text())
                problem = ""
            except OSError as error:  # a disk that is full for a while, for example
                problem = f"{os_error_text(error)} (tried again each {seconds:g} s)"
            if problem != before:
                print(problem or f"{path} is written again", file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, _stop)
    _until_stopped(write_again)


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    with path.open(encoding="ascii", errors="replace") as file:
        token = file.read(TOKEN_BYTES).strip()
    if not token:
        raise Failure(f"{path} has no token")
    return token


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(ExitCode.DONE)


def _until_stopped(work: Callable[[], None]) -> None:
    try:
        work()
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.DONE) from None
