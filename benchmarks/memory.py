"""Peak resident memory of the paper's experiment, 200 clients on CIFAR-10, in a process of its own.

The images are held once, as float32 (0.74 GB); random ones unless `--data-dir` is given. R is
measured, as `wecfl run` does by default.
"""

from __future__ import annotations

from common import SETTINGS, Line, in_a_fresh_process, main, paper, peak_memory
from wecfl import run_config


def lines(rounds: int = 3, data_dir: str = "") -> list[Line]:
    """One figure."""
    setting = SETTINGS[0]
    data, peak = in_a_fresh_process(_run, rounds, data_dir)
    images = f"{data:.2f} GB of {'real' if data_dir else 'random'} images among it"
    return [
        Line("peak memory, 200 clients", setting.title, [peak], most=1.5, unit="GB", detail=images)
    ]


def _run(rounds: int, data_dir: str) -> tuple[float, float]:
    """GB of images, and of the whole process at its peak."""
    config, fed = paper(SETTINGS[0], data_dir)
    run_config(config.model_copy(update={"rounds": rounds, "objectives": True}), fed)
    return fed.x.nbytes / 1e9, peak_memory()


if __name__ == "__main__":
    main(lines)
