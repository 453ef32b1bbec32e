"""The local training of other libraries, one function each; a script that runs one of them.

    python benchmarks/peer_training.py FedLab cnn-cifar TURNS CLIENTS

prints as JSON the CPU-seconds of each turn of the peer and of the native engine, which alternate.
It runs in the environment of the peers, for `peers.py`. The plain loop, which is no library, is
measured in the same way.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from tempfile import TemporaryDirectory
from time import sleep
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from common import cpu_seconds, measure, sgd, update
from peer_workloads import workload
from wecfl import NativeEngine, State
from wecfl.core.plan import LocalPlan
from wecfl.models import row_of

LR, MOMENTUM, BATCH, STEPS = 0.001, 0.9, 32, 10


Work = Callable[[], object]
"""All clients train for 10 steps."""
Turns = Callable[[Work], None]
"""Given the work of a peer: measures it in turns with the native engine."""


def plain_loop(model: str, m: int, turns: Turns) -> None:
    """What people write: a module, an optimizer and a DataLoader for each client."""
    given = workload(model, m)
    models = [given.build() for _ in range(m)]
    loaders = [DataLoader(samples, BATCH, shuffle=True) for samples in given.sets]

    def work() -> None:
        for own, loader in zip(models, loaders, strict=True):
            sgd(own, torch.optim.SGD(own.parameters(), lr=LR, momentum=MOMENTUM), loader)

    turns(work)


def fedlab(model: str, m: int, turns: Turns) -> None:
    """`SGDSerialClientTrainer.local_process`, its optimizer with momentum, and its upload."""
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer

    given = workload(model, m)
    trainer = SGDSerialClientTrainer(given.build(), m, logger=SimpleNamespace(info=lambda _: None))
    trainer.setup_optim(epochs=1, batch_size=BATCH, lr=LR)
    trainer.optimizer = torch.optim.SGD(trainer._model.parameters(), lr=LR, momentum=MOMENTUM)
    trainer.setup_dataset(
        SimpleNamespace(
            get_dataloader=lambda i, batch: DataLoader(given.sets[i], batch, shuffle=True)
        )
    )
    start = trainer.model_parameters

    def work() -> None:
        trainer.local_process([start], range(m))
        trainer.uplink_package  # noqa: B018  (reading it empties the trainer's store)

    turns(work)


def pfl(model: str, m: int, turns: Turns) -> None:
    """`SimulatedBackend.gather_results` of `FederatedAveraging`, without its evaluations."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.common_types import Population
    from pfl.context import CentralContext
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    given = workload(model, m)
    module = given.build()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        module.train()
        return nn.functional.cross_entropy(module(x), y)

    module.loss, module.metrics = loss, lambda x, y: {}  # type: ignore[assignment]
    adapted = PyTorchModel(
        module,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )
    whose = count()
    users = FederatedDataset(
        lambda i: PyTorchTensorDataset(given.sets[i].tensors), lambda: next(whose) % m
    )
    backend, algorithm = SimulatedBackend(users, users), FederatedAveraging()
    context = CentralContext(
        current_central_iteration=0,
        do_evaluation=False,
        cohort_size=m,
        population=Population.TRAIN,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1, evaluation_frequency=1, train_cohort_size=m,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LR
        ),
    )  # fmt: skip
    turns(lambda: backend.gather_results(adapted, algorithm, central_context=context))


def fedbase(model: str, m: int, turns: Turns) -> None:
    """`node.local_update_steps` with `node.train_single_step` (the paper's authors)."""
    from fedbase.nodes.node import node

    given, nodes = workload(model, m), [node(i, "cpu") for i in range(m)]
    for own, samples in zip(nodes, given.sets, strict=True):
        own.assign_train(DataLoader(samples, batch_size=BATCH, shuffle=True))
        own.assign_model(given.build())
        own.assign_objective(nn.CrossEntropyLoss())
        own.assign_optim(torch.optim.SGD(own.model.parameters(), lr=LR, momentum=MOMENTUM))
    turns(lambda: [own.local_update_steps(STEPS, own.train_single_step) for own in nodes])


def fluke(model: str, m: int, turns: Turns) -> None:
    """`Client.fit` over its own `FastDataLoader`."""
    from fluke.client import Client
    from fluke.config import OptimizerConfigurator
    from fluke.data import FastDataLoader

    optimizer = {"name": "SGD", "lr": LR, "momentum": MOMENTUM}
    given, clients = workload(model, m), []
    for i, samples in enumerate(given.sets):
        loader = FastDataLoader(
            *samples.tensors, num_labels=given.classes, batch_size=BATCH, shuffle=True
        )
        configured = OptimizerConfigurator(dict(optimizer))
        client = Client(i, loader, None, configured, nn.CrossEntropyLoss(), local_epochs=1)
        client.model = given.build()
        clients.append(client)
    turns(lambda: [client.fit() for client in clients])


def cfla(model: str, m: int, turns: Turns) -> None:
    """`ClientFeSEM.train`, the one of its clients that steps by SGD; here with momentum.

    It makes the model anew by its class, and tests it before and after on the samples held out, of
    which there are none here.
    """
    from cfla.framework.client.client_fesem import ClientFeSEM

    given = workload(model, m)

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = given.build()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out

    torch.optim.SGD = partial(torch.optim.SGD, momentum=MOMENTUM)  # type: ignore[misc,assignment]
    options = {
        "device": "cpu", "local_epochs": 1, "learning_rate": LR, "batch_size": BATCH,
        "train_fraction": 1.0,
    }  # fmt: skip
    with TemporaryDirectory() as folder:
        clients = [ClientFeSEM(i, own, options, folder) for i, own in enumerate(given.sets)]
        start = Made()
        turns(lambda: [client.train(start, save_metrics=False) for client in clients])


def fedjax(model: str, m: int, turns: Turns) -> None:
    """`create_train_for_each_client` of its `fed_avg`, over `ClientDataset.shuffle_repeat_batch`.

    On one core, since XLA takes its number of threads from that.
    """
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    import jax
    from fedjax import ClientDataset, ShuffleRepeatBatchHParams, model_grad, optimizers
    from fedjax.algorithms.fed_avg import create_train_for_each_client

    from peer_jax_models import examples, made

    given = workload(model, m)
    ours = made(model)
    train = create_train_for_each_client(model_grad(ours), optimizers.sgd(LR, MOMENTUM))
    batches = ShuffleRepeatBatchHParams(batch_size=BATCH)
    datasets = [ClientDataset(examples(*own.tensors)) for own in given.sets]
    start, keys = ours.init(jax.random.PRNGKey(0)), jax.random.split(jax.random.PRNGKey(1), m)
    found = sum(array.size for array in jax.tree_util.tree_leaves(start))
    named = given.build().named_parameters()
    expected = sum(array.numel() for name, array in named if "bias_hh" not in name)
    if found != expected:
        raise ValueError(f"{model} has {found} parameters in FedJAX, and {expected} in torch")

    def work() -> None:
        clients = [
            (i, own.shuffle_repeat_batch(batches), keys[i]) for i, own in enumerate(datasets)
        ]
        jax.block_until_ready([delta for _, delta in train(start, clients)])

    turns(work)


def flower(model: str, m: int, turns: Turns) -> None:
    """`flwr.simulation.run_simulation` on Ray, one actor per core: a message each way per client.

    The client is the loop of Flower's own PyTorch examples: arrays into the module, a DataLoader,
    SGD, arrays back. Data are in every actor from the start.
    """
    from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        given = workload(model, m)
        module, samples = given.build(), given.sets[int(context.node_config["partition-id"])]
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
        sgd(module, optimizer, DataLoader(samples, batch_size=BATCH, shuffle=True))
        arrays = ArrayRecord(module.state_dict())
        return Message(content=RecordDict({"arrays": arrays}), reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        start = RecordDict({"arrays": ArrayRecord(workload(model, m).build().state_dict())})
        while len(nodes := list(grid.get_node_ids())) < m:
            sleep(0.1)

        def work() -> None:
            sent = [
                Message(content=start, message_type=MessageType.TRAIN, dst_node_id=node)
                for node in nodes
            ]
            replies = list(grid.send_and_receive(sent))
            failed = [reply.error for reply in replies if reply.has_error()]
            if failed or len(replies) < m:
                raise RuntimeError(f"Flower: {len(replies)} replies of {m}, errors {failed}")

        turns(work)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=m, backend_config=resources)


PEERS: dict[str, tuple[str, str, Callable[[str, int, Turns], None]]] = {
    "plain loop": ("torch", "a module, an optimizer, a DataLoader", plain_loop),
    "FedLab": ("fedlab", "SGDSerialClientTrainer.local_process", fedlab),
    "fluke": ("fluke-fl", "Client.fit", fluke),
    "pfl": ("pfl", "SimulatedBackend.gather_results", pfl),
    "fedbase": ("fedbase", "node.local_update_steps", fedbase),
    "cfla": ("cfla", "ClientFeSEM.train", cfla),
    "FedJAX": ("fedjax", "create_train_for_each_client", fedjax),
    "Flower": ("flwr", "run_simulation", flower),
}
"""Name ↦ distribution, what runs the local training, the function above."""


def main() -> None:
    """Print the CPU-seconds, or that the peer is not installed."""
    name, model, turns, m = *sys.argv[1:3], *map(int, sys.argv[3:])
    distribution, _, peer = PEERS[name]
    try:
        found = version(distribution)
    except PackageNotFoundError:
        print(json.dumps({"why": "not installed"}))
        return
    torch.set_num_threads(1)
    # PyPI's torchvision, which FedLab and fluke import, is built for CUDA: with torch for CPUs it
    # stops at image operators that nobody calls here, unless they are declared.
    operators = torch.library.Library("torchvision", "DEF")
    operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    given, plan = workload(model, m), LocalPlan(STEPS, BATCH, LR, MOMENTUM)
    engine = NativeEngine(given.fed, given.native, workers=1)
    rows = np.repeat(row_of(given.native)[None], m, axis=0)
    state = State(0, {"model": rows}, rows[:1], np.zeros(m, dtype=np.int64))
    seconds: list[list[float]] = []

    def native() -> None:
        update(engine, state, plan)

    def in_turns(work: Work) -> None:
        seconds.extend(measure(turns, native, work, clock=cpu_seconds))

    peer(model, m, in_turns)
    print(json.dumps({"version": found, "native": seconds[0], "peer": seconds[1]}))


if __name__ == "__main__":
    main()
