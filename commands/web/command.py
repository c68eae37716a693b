"""``bench web``: serve the pages until Ctrl-C."""

import os
import socket
from pathlib import Path

import click

from commands.paths import UserPath
from provisioning.paths import refuse_foreign
from suite.errors import RequestError, missing_extra
from suite.results.layout import results_directory
from suite.results.runs import is_run

_PATH = UserPath()


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port; 0 is any free one. Default: that of last time, or 8642."
)
@click.option("--results", type=_PATH, default=results_directory, help="Directory of the runs. Default: results.")
@click.option("--services", type=_PATH, help='TOML file of services that generate: place = "http://HOST:PORT".')
@click.option("--new-token", is_flag=True, help="Draw another token: earlier addresses open nothing.")
@click.option("--allow-files", is_flag=True, help="Start runs that name files, devices or programs of this machine.")
def web(port: int | None, results: Path, services: Path | None, new_token: bool, allow_files: bool) -> None:
    """Serve pages to start, watch and compare runs.

    They also ask services for images.

    Open the printed address: it holds the token without which no page is shown. It is the same each time, until
    --new-token. The server listens on loopback only. Ctrl-C ends it, and not the runs.

    \b
    Examples:
      bench web
      bench web --port 9000 --results /data/results --services services.toml
      ssh -L 8642:localhost:8642 gpu1 bench web         (pages of another machine)
    """
    try:
        from commands.web import generate, runs, start
        from commands.web.address import address, keep
        from commands.web.app import WebSettings, create_app, serve
    except ImportError as error:
        raise missing_extra(str(error.name), "web") from error
    _prepare_results(results)
    places = generate.read_services(services) if services else {}
    where = address(port, new_token=new_token)
    chosen = WebSettings(results.resolve(), where.token, allow_files, places)
    app = create_app(chosen, [start.PAGES, runs.PAGES, generate.PAGES])
    try:
        listener = socket.create_server(("127.0.0.1", where.port))
    except OSError as error:
        raise RequestError(f"port {where.port}: {error.strerror}", remedy="give another one with --port") from error
    keep(where)
    click.echo(f"http://127.0.0.1:{listener.getsockname()[1]}{chosen.path}/?token={chosen.token}")
    click.echo("open this address; Ctrl-C ends the server, not the runs", err=True)
    if os.geteuid() == 0:
        click.echo("it runs as root: whoever has this address starts programs as root here", err=True)
    serve(app, chosen, listener)


def _prepare_results(results: Path) -> None:
    """Make the usual directory of runs if it is missing. Raises RequestError for one that cannot serve as such."""
    if is_run(results):
        raise RequestError(f"{results} is a run", remedy="name the directory that holds runs with --results")
    if not results.exists() and results != results_directory():
        raise RequestError(f"no directory {results}", remedy=f"make it (mkdir {results}), or name another --results")
    try:
        results.mkdir(exist_ok=True)
    except OSError as error:
        raise RequestError(f"{results}: {error.strerror}", remedy="name a directory with --results") from error
    refuse_foreign(results.resolve(), "name a directory of your own with --results")
