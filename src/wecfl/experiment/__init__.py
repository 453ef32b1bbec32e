"""An experiment: a run is put together here, trained round by round, and loaded again."""

from wecfl.experiment.assembly import Experiment, run, run_config

__all__ = ["Experiment", "run", "run_config"]
