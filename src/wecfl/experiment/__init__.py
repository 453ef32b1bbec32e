"""An experiment: where a run is put together, trained round by round, and loaded again."""

from wecfl.experiment.assembly import Experiment, run, run_config

__all__ = ["Experiment", "run", "run_config"]
