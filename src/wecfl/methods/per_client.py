"""Methods that give each client a model of its own."""

from __future__ import annotations

from wecfl.bilevel.aggregation import Stay
from wecfl.bilevel.aggregation.hyper_network import Apart, HyperNetwork, hyper_update
from wecfl.bilevel.aggregation.optimizer import Adaptive, Momentum, adam
from wecfl.bilevel.local import Alone, Ditto, Only, Parts
from wecfl.bilevel.local.interpolated_models import InterpolatedSteps
from wecfl.bilevel.local.masks import HolderMean, PrunedSteps, known_masks, learn_masks
from wecfl.bilevel.local.meta import MetaGradient, MetaSteps
from wecfl.bilevel.local.moreau_envelope import MoreauSteps
from wecfl.bilevel.local.prototypes import (
    PrototypeMeans,
    Prototypes,
    PrototypeSteps,
    own_prototypes,
)
from wecfl.bilevel.representation import Columns
from wecfl.bilevel.serving import NearestPrototype, Personal, Pruned, Tuned
from wecfl.core.ask import Ask
from wecfl.core.method import Method
from wecfl.methods.one_model import fedavg

__all__ = [
    "apfl",
    "ditto",
    "fedavg_ft",
    "fedbabu",
    "fedmeta",
    "fedper",
    "fedproto",
    "fedrep",
    "hermes",
    "lg_fedavg",
    "local",
    "lotteryfl",
    "per_fedavg",
    "pfedhn",
    "pfedme",
]


def local() -> Method:
    """Local training only: every client continues from its own model, and nothing is averaged.

    >>> local().serve
    Personal()
    """
    return fedavg.replace(name="local", local=Alone(), serve=Personal(), aggregation=Stay())


def fedavg_ft(tuning_steps: int | None = None) -> Method:
    """FedAvg with fine-tuning at each client, which is tested before and after it.

    >>> fedavg_ft(5).serve
    Tuned(steps=5, lr=None)
    """
    return fedavg.replace(name="fedavg-ft", serve=Tuned(tuning_steps))


def ditto(lam: float = 1.0) -> Method:
    """Ditto: a personal model that is pulled towards the common one (Li et al., ICML 2021).

    >>> ditto(0.5).local
    Ditto(lam=0.5)
    """
    return fedavg.replace(name="ditto", local=Ditto(lam), serve=Personal())


def fedper() -> Method:
    """FedPer: the last layer stays at the client (Arivazhagan et al., 2019).

    >>> fedper().shared
    '~classifier'
    """
    return fedavg.replace(
        name="fedper", shared="~classifier", representation=Columns("~classifier")
    )


def lg_fedavg() -> Method:
    """LG-FedAvg: only the last layer is shared (Liang et al., 2020).

    >>> lg_fedavg().shared
    'classifier'
    """
    return fedavg.replace(name="lg-fedavg", shared="classifier")


def fedrep(head_steps: int | None = None) -> Method:
    """FedRep: FedPer, but head and body are trained one after the other (Collins, ICML 2021).

    >>> fedrep(3).local
    Parts(first='classifier', steps=3)
    """
    return fedper().replace(name="fedrep", local=Parts("classifier", head_steps))


def per_fedavg(inner_lr: float = 0.01, hessian: bool = False) -> Method:
    """Per-FedAvg: a model that is good after one step of the client (Fallah et al., NeurIPS 2020).

    Clients adapt the model on their training data, never on test data. With `hessian`, this is the
    Hessian-free variant, otherwise the first-order variant.

    >>> per_fedavg(0.05).serve
    Tuned(steps=1, lr=0.05)
    """
    return fedavg.replace(
        name="per-fedavg", local=MetaSteps(inner_lr, hessian), serve=Tuned(1, inner_lr)
    )


def pfedme(
    lam: float = 15.0, inner_steps: int = 5, inner_lr: float = 0.1, server_lr: float = 1.0
) -> Method:
    """pFedMe: personal models by Moreau envelopes (Dinh et al., NeurIPS 2020).

    `server_lr` is the paper's β. Clients take plain steps, so its default momentum is 0.

    >>> pfedme(lam=5).local
    MoreauSteps(lam=5, inner_steps=5, inner_lr=0.1)
    """
    return fedavg.replace(
        name="pfedme", local=MoreauSteps(lam, inner_steps, inner_lr), serve=Personal(),
        aggregation=Momentum(server_lr, 0.0), plan={"momentum": 0.0},
    )  # fmt: skip


def fedproto(lam: float = 0.02) -> Method:
    """FedProto: clients exchange mean features of classes, and no models (Tan et al., AAAI 2022).

    `lam` is the weight of the squared distance ‖z − C_y‖². Clients predict by the nearest of the
    common prototypes.

    >>> fedproto(0.1).shared
    'none'
    """
    return fedavg.replace(
        name="fedproto", local=PrototypeSteps(lam), serve=NearestPrototype(), shared="none",
        representation=Prototypes(), aggregation=PrototypeMeans(),
        steps=(Ask(send=own_prototypes), "E", "M", "D"),
    )  # fmt: skip


def lotteryfl(
    prune_above: float = 0.5, prune_rate: float = 0.2, prune_target: float = 0.5
) -> Method:
    """LotteryFL: each client finds a sparse model, and sends only its columns (Li et al., 2020).

    The options are those of `wecfl.bilevel.local.masks.PrunedSteps`.

    >>> lotteryfl().aggregation
    HolderMean()
    """
    return fedavg.replace(
        name="lotteryfl", local=PrunedSteps(prune_above, prune_rate, prune_target), serve=Pruned(),
        aggregation=HolderMean(),
        steps=(Ask(send=known_masks, learn=learn_masks), "E", "M", "D"),
    )  # fmt: skip


def hermes(prune_above: float = 0.5, prune_rate: float = 0.2, prune_target: float = 0.5) -> Method:
    """Hermes: every client prunes channels, and sends only what is left (Li et al., MobiCom 2021).

    The options are those of `wecfl.bilevel.local.masks.PrunedSteps`.

    >>> hermes(0.8).local
    PrunedSteps(above=0.8, rate=0.2, target=0.5, channels=True)
    """
    local = PrunedSteps(prune_above, prune_rate, prune_target, channels=True)
    return lotteryfl().replace(name="hermes", local=local)


def fedbabu(tuning_steps: int | None = None) -> Method:
    """FedBABU: only the body is trained and shared, then all is fine-tuned (Oh et al., ICLR 2022).

    >>> fedbabu().local
    Only(columns='~classifier')
    """
    return fedper().replace(name="fedbabu", local=Only("~classifier"), serve=Tuned(tuning_steps))


def apfl(mixing: float = 0.5, adaptive: bool = True) -> Method:
    """APFL: a personal model, mixed with the common one by a learned share (Deng et al., 2020).

    >>> apfl(0.25).local
    InterpolatedSteps(mixing=0.25, adaptive=True)
    """
    return fedavg.replace(name="apfl", local=InterpolatedSteps(mixing, adaptive), serve=Personal())


def fedmeta(
    inner_steps: int = 1,
    hessian: bool = True,
    server_lr: float = 0.03,
    beta1: float = 0.9,
    beta2: float = 0.99,
) -> Method:
    """FedMeta: MAML with a server that takes steps of Adam (Chen et al., 2018).

    Clients take plain steps, so the default momentum is 0.

    >>> fedmeta(2).serve
    Tuned(steps=2, lr=None)
    """
    return fedavg.replace(
        name="fedmeta", local=MetaGradient(inner_steps, hessian), serve=Tuned(inner_steps),
        aggregation=Adaptive(adam, server_lr, beta1, beta2), plan={"momentum": 0.0},
    )  # fmt: skip


def pfedhn(embedding: int | None = None, hidden: int = 100, server_lr: float = 0.01) -> Method:
    """pFedHN: a hyper-network makes a model for each client (Shamsian et al., ICML 2021).

    The options are those of `wecfl.bilevel.aggregation.hyper_network.HyperNetwork`. The clients'
    momentum starts from zero in every round.

    >>> pfedhn().clustering
    Apart()
    """
    return fedavg.replace(
        name="pfedhn", k="auto", clustering=Apart(), opening=("E", "D"),
        steps=(hyper_update(HyperNetwork(embedding, hidden, server_lr)), "D"),
        plan={"keep_momentum": False},
    )  # fmt: skip
