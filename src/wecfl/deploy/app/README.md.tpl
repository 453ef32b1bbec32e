# APP-NAME

Clustered federated learning over a network, with [Flower](https://flower.ai) and `wecfl`.

- `PACKAGE/task.py`: **fill in** `load_data()`, `make_model()` and `CLASSES`.
- `pyproject.toml`: the method and its choices, under `[tool.flwr.app.config]`.

To try it on this machine, run in the folder above this one:

    wecfl deploy up APP-NAME --nodes 4
    wecfl deploy run APP-NAME
    wecfl deploy down APP-NAME
