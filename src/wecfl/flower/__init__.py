"""The same methods over a network: Flower carries messages, `core.rounds` stays the only loop.

A user's app is two lines beside the data and the model (`wecfl deploy new DIR` writes it)::

    app = wecfl.flower.client_app(load_data, make_model, classes=10)     # client.py
    app = wecfl.flower.server_app(make_model, classes=10)                # server.py

`FlowerEngine` is the engine that asks clients over the network; `Roster` is who they are.
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
else:  # a client, started anew for each message, does without
    __getattr__, __dir__ = lazy_import(
        __name__,
        {
            "FlowerEngine": "wecfl.flower.engine:FlowerEngine",
            "Roster": "wecfl.flower.roster:Roster",
            "server_app": "wecfl.flower.server:server_app",
        },
    )

__all__ = ["FlowerEngine", "Roster", "client_app", "server_app"]
