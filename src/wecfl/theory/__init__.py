"""The paper's lemmas, judged on a run."""
