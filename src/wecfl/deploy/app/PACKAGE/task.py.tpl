"""Your data and your model: fill these in."""

from torch import nn

import wecfl

CLASSES = 10


def load_data(config):
    """Return this client's own samples (n, …) and labels 0 … CLASSES - 1 as NumPy arrays.

    Return (x, y), a fifth of which is kept for tests, or (x, y, x_test, y_test). `config` is the
    node's configuration (flower-supernode --node-config): put paths and the like there.

    This example gives scikit-learn's digits to two kinds of clients.
    """
    partition = wecfl.partitions.ClusterwiseNClass((5, 5), groups=2)
    fed = wecfl.Federation.from_dataset("digits", partition, clients=config["num-partitions"])
    train, test = (rows[config["partition-id"]] for rows in (fed.train, fed.test))
    return fed.x[train], fed.y[train], fed.x[test], fed.y[test]


def make_model():
    """Return the model, which must be the same on all clients and on the server."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
