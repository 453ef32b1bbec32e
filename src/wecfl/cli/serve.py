"""`wecfl serve`: the models of a run as an HTTP endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wecfl.cli import terminal
from wecfl.cli.flags import OwnModelFlag
from wecfl.errors import ConfigError

__all__ = ["serve"]


def serve(
    folder: Path,
    /,
    *,
    host: Annotated[
        str, Parameter(help="The address to listen on; in a container, use 0.0.0.0.")
    ] = "127.0.0.1",
    port: Annotated[
        int, Parameter(help="The port to listen on; with 0, any port that is free.")
    ] = 8000,
    workers: Annotated[
        int | None, Parameter(help="The number of threads or processes that train newcomers.")
    ] = 1,
    model: OwnModelFlag = None,
) -> None:
    """Serve the models of a run over HTTP: predictions by client, by cluster and for newcomers.

    The server has no TLS and asks for no password, so it listens on this machine only. To let
    others reach it, put a proxy in front of it that has both; --host changes the address.

    Parameters
    ----------
    folder
        The folder of a run that has ended or was stopped.

    """
    try:
        import uvicorn

        from wecfl.endpoint import make_app
    except ImportError as error:
        raise ConfigError(f"serve needs {error.name}: pip install 'wecfl[serve]'") from None
    from wecfl.experiment.loading import load
    from wecfl.models.own import own_model

    result = load(folder, model=model and own_model(model), workers=workers)
    config = uvicorn.Config(
        make_app(result), host=host, port=port, ws="none", log_level="warning",
        timeout_graceful_shutdown=5,
    )  # fmt: skip
    try:
        listening = config.bind_socket()
    except SystemExit:  # uvicorn has logged why
        raise ConfigError(
            f"can't listen on {host}:{port}: choose another --port or --host"
        ) from None
    listening.listen()  # requests wait until the server is up
    address, number = listening.getsockname()[:2]
    terminal.show(f"{result}")
    terminal.show(f"serving on http://{address}:{number}/health; press Ctrl-C to stop")
    uvicorn.Server(config).run(sockets=[listening])
