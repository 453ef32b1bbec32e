"""The same methods over a network: Flower carries the messages, `core.rounds` is the only loop.

Beside the data and the model, a user's app is two lines (`wecfl deploy new DIR` writes them)::

    app = wecfl.flower.client_app(load_data, make_model, classes=10)     # client.py
    app = wecfl.flower.server_app(make_model, classes=10)                # server.py

`FlowerEngine` is the engine that asks clients over the network; a `Roster` lists these clients.
"""

from typing import TYPE_CHECKING

from wecfl._lazy_import import lazy_import

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"wecfl.flower needs an extra: pip install 'wecfl[flower]' ({error})"
    ) from None

from wecfl.flower.client import client_app

if TYPE_CHECKING:
    from wecfl.flower.engine import FlowerEngine
    from wecfl.flower.roster import Roster
    from wecfl.flower.server import server_app
else:  # a client starts a new process for each message, and does not need these
    __getattr__, __dir__ = lazy_import(
        __name__,
        {
            "FlowerEngine": "wecfl.flower.engine:FlowerEngine",
            "Roster": "wecfl.flower.roster:Roster",
            "server_app": "wecfl.flower.server:server_app",
        },
    )

__all__ = ["FlowerEngine", "Roster", "client_app", "server_app"]
