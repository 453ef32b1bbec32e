"""`wecfl data` and `wecfl partition`: data sets, and how they are divided among clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from wecfl.cli import terminal
from wecfl.cli.flags import (
    ConfigFlags,
    DataDirFlag,
    ExperimentFlags,
    PresetFlag,
    check_figure,
    config_from_flags,
)
from wecfl.config.keys import PAPER_PARTITIONS
from wecfl.config.resolve import resolve
from wecfl.errors import ConfigError

if TYPE_CHECKING:
    import altair as alt

    from wecfl.config import Config
    from wecfl.report.figures.partition import Panel

__all__ = ["data", "partition"]

data = App(name="data", help="List and download data sets.")
"""The command `wecfl data` with its subcommands."""


@data.command(name="list")
def data_list(*, data_dir: DataDirFlag = None) -> None:
    """List the data sets known by name, and where each one was found."""
    from wecfl.data import datasets
    from wecfl.data.source import TableSource

    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    for head in ("name", "samples", "shape, clients", "classes, target", "found at"):
        table.add_column(head, no_wrap=head != "found at", overflow="fold")
    for source, place in datasets.catalogue(data_dir):
        if isinstance(source, TableSource):
            holds = (f"{source.rows:,}", f"{source.clients} × {source.client}", source.target)
        else:
            shape = " × ".join(map(str, source.shape))
            holds = (f"{source.n_train:,} + {source.n_test:,}", shape, str(source.classes))
        found = escape(str(place)) if place else f"not here yet: wecfl data get {source.name}"
        table.add_row(source.name, *holds, found)
    terminal.table(table)


@data.command(name="get")
def data_get(name: str, /, *, data_dir: DataDirFlag = None) -> None:
    """Download a data set if it is not on this machine yet, and print where it is.

    Parameters
    ----------
    name
        A name from `wecfl data list`.

    """
    from wecfl.data import datasets

    with terminal.downloads() as progress:
        place = datasets.get(name, data_dir, progress=progress)
    terminal.show(str(place))


def partition(
    *,
    panels: Annotated[
        Literal["one", "pair", "four"],
        Parameter(
            help="What to draw: one, the partition that the other flags describe; pair, the "
            "paper's client-wise and cluster-wise Dirichlet; four, the paper's four partitions."
        ),
    ] = "one",
    out: Annotated[Path, Parameter(help="The figure to write: .png, .svg, .pdf or .html.")] = Path(
        "partition.png"
    ),
    config: Annotated[Path | None, Parameter(help="A TOML file with any of the choices.")] = None,
    preset: PresetFlag = None,
    flags: ExperimentFlags = ConfigFlags(),  # noqa: B008  (frozen)
) -> None:
    """Show how samples would be divided: a summary of the clients, and a bar chart.

    Each partition gets one line: samples per client (mean ± standard deviation), the smallest and
    the largest client, test samples, and the mean number of classes per client. If samples are
    transformed, the figure also shows some of each group.
    """
    chosen = config_from_flags(config, preset, flags)
    check_figure(out)
    import numpy as np

    from wecfl.from_config import federation_of, holds_clients
    from wecfl.report.figures.partition import bars
    from wecfl.report.figures.samples import sample_panel
    from wecfl.report.sentences import client_words, partition_words

    settings = [chosen] if panels == "one" else _paper_partitions(chosen, panels)
    drawn: list[Panel] = []
    beside: list[alt.Chart | alt.FacetChart] = []
    pool = None if holds_clients(chosen) else terminal.load(chosen)
    for setting in settings:
        federation = federation_of(setting, pool)
        held = federation.held
        if held is None and not chosen.transform:
            raise ConfigError(
                f"wecfl partition shows the classes of each client, but the targets of "
                f"{chosen.dataset} are numbers: use wecfl run, which divides them by size alone"
            )
        title = chosen.dataset if holds_clients(chosen) else partition_words(setting.model_dump())
        if held is not None:
            drawn.append((title, held, federation.groups))
        if chosen.transform:
            beside.append(sample_panel(federation))
        sizes, tests = federation.sizes, np.array([len(rows) for rows in federation.test])
        clients = client_words(sizes, federation.groups)
        kinds = "" if held is None else f", {(held > 0).sum(axis=0).mean():.1f} classes each"
        terminal.show(
            f"{title}: {clients} ({sizes.min()} … {sizes.max()}), "
            f"{tests.mean():.0f} ± {tests.std():.0f} test samples{kinds}"
        )
    terminal.draw(bars(drawn, beside=beside), out)


def _paper_partitions(chosen: Config, panels: Literal["pair", "four"]) -> list[Config]:
    """The configurations of the paper's partitions, of which a figure shows two or four."""
    from wecfl.from_config import holds_clients

    if holds_clients(chosen):
        raise ConfigError(
            f"{chosen.dataset} holds one file per client, so there is nothing to partition: "
            f"leave out --panels {panels}"
        )
    names = {
        "pair": ["clientwise-dirichlet", "clusterwise-dirichlet"],
        "four": list(PAPER_PARTITIONS),
    }[panels]
    choices = {**chosen.model_dump(), "alpha": None, "classes_per": None}
    return [resolve(flags={**choices, "partition": name}) for name in names]
