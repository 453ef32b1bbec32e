"""`client.py` of the app in test_federation.py: honest, unless lies.json beside its state says else.

The file holds, by round, how the client answers when it is asked to train. What load_data() returned
at first is kept beside it, because each message starts a new process, and reading digits takes long.
"""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from PACKAGE.task import CLASSES, load_data, make_model

from wecfl.flower import client_app


def load_once(config):
    file = Path(str(config["state-dir"])).parent / "data.npz"
    if not file.exists():
        temporary = file.with_name("data.part.npz")
        np.savez(temporary, *load_data(config))
        temporary.replace(file)
    with np.load(file) as held:
        return tuple(held.values())


honest = client_app(load_once, make_model, classes=CLASSES)


class Liar(ClientApp):
    def __call__(self, message: Message, context: Context) -> Message:
        file = Path(str(context.node_config["state-dir"])).parent / "lies.json"
        lies = json.loads(file.read_text()) if file.exists() else {}
        config = message.content.config_records["config"]
        lie = lies.get(str(config.get("round"))) if message.metadata.message_type == "train" else ""
        if lie == "silence":
            time.sleep(3600)
        reply = honest(message, context)
        model = reply.content.array_records["arrays"]["model"].numpy() if lie else np.zeros(0)
        much = 100_000_000 if lie == "huge" else 3_000_000
        oversized = Array("float32", model.shape, "numpy.ndarray", bytes(much))
        false = {
            "nan": Array(np.full_like(model, np.nan)),
            "shape": Array(model[:-1]),
            "size": oversized,
            "huge": oversized,
        }
        if lie == "weight":
            samples = {"samples": 10**15, "restarted": 0}
            reply.content["metrics"] = MetricRecord(samples)
        elif lie:
            reply.content["arrays"] = ArrayRecord({"model": false[str(lie)]})
        return reply


app = Liar()
