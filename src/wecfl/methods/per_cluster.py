"""Methods that learn one model for each cluster of clients."""

from __future__ import annotations

from typing import Literal

from wecfl.bilevel.aggregation import Mean
from wecfl.bilevel.auto import Auto, Criterion
from wecfl.bilevel.clustering import KMeans
from wecfl.bilevel.common_pull import PULLED_TOGETHER
from wecfl.bilevel.distance import component
from wecfl.bilevel.hierarchy import Agglomerative, Bipartition, Linkage, Metric
from wecfl.bilevel.importance import data_size, uniform
from wecfl.bilevel.local import Train
from wecfl.bilevel.representation import Losses
from wecfl.core.method import Method
from wecfl.methods.one_model import fedavg

__all__ = ["NumberOfClusters", "cfl", "fesem", "flhc", "ifca", "wecfl"]

NumberOfClusters = int | Literal["auto"]
"""A number of clusters, or "auto": the server chooses it."""


def wecfl(
    k: NumberOfClusters, warm: bool = True, criterion: Criterion = "both", pull: float = 0.0
) -> Method:
    """WeCFL, Algorithm 1: weighted K-means of the clients' models, λ_i = |D_i| (the paper).

    With `warm`, K-means also starts from the previous centers, so that F never rises. If k is
    "auto", the server chooses K by `criterion`. `pull` is the μ of a pull towards the mean of all
    clients, which is in the authors' code but not in the paper (`wecfl.bilevel.common_pull`).

    >>> wecfl(k=10).representation
    Columns('head')
    >>> wecfl(k="auto").clustering.criterion
    'both'
    """
    kmeans = KMeans(warm=warm)
    clustering = Auto(kmeans, criterion) if k == "auto" else kmeans
    method = fedavg.replace(name="wecfl", k=k, clustering=clustering)
    if pull == 0:
        return method
    return method.replace(local=Train(mu=pull), steps=(PULLED_TOGETHER, "E", "M", "D"))


def fesem(
    k: NumberOfClusters, warm: bool = True, criterion: Criterion = "both", pull: float = 0.0
) -> Method:
    """FeSEM: clusters with λ_i = 1, and aggregates by data size (Xie et al.; the authors' code).

    >>> fesem(k=10).importance.__name__
    'uniform'
    """
    like = wecfl(k, warm, criterion, pull)
    return like.replace(name="fesem", importance=uniform, aggregation=Mean(data_size))


def ifca(k: int, batches: int | None = None) -> Method:
    """IFCA (= HypCluster): a client takes the cluster model with the least training loss.

    It starts from K different models. It aggregates with the labels that clients were trained with,
    and assigns clients afterwards (Ghosh et al., NeurIPS 2020; Mansour et al., 2020). The loss is
    estimated on `batches` mini-batches, by default on all data.

    >>> ifca(k=10).steps
    ('L', 'M', 'E', 'D')
    """
    return fedavg.replace(
        name="ifca", k=k, representation=Losses(batches), distance=component, start="each",
        opening=("E", "D"), steps=("L", "M", "E", "D"),
    )  # fmt: skip


def cfl(eps1: float = 0.4, eps2: float = 1.0) -> Method:
    """CFL: a cluster is split in two where its clients disagree (Sattler et al., TNNLS 2020).

    The options are those of `wecfl.bilevel.hierarchy.Bipartition`.

    >>> cfl(eps1=0.1).clustering.eps1
    0.1
    """
    return fedavg.replace(name="cfl", k="auto", clustering=Bipartition(eps1, eps2))


def flhc(
    round: int = 1,
    threshold: float = 0.5,
    linkage: Linkage = "average",
    metric: Metric = "cosine",
) -> Method:
    """FL+HC: clients are clustered once, by their updates in one round (Briggs et al., IJCNN 2020).

    The options are those of `wecfl.bilevel.hierarchy.Agglomerative`.

    >>> flhc(round=3).clustering.round
    3
    """
    clustering = Agglomerative(round, threshold, linkage, metric)
    return fedavg.replace(name="flhc", k="auto", clustering=clustering)
