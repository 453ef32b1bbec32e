"""The paper's lemmas and theorems, judged on what a run recorded (`wecfl check`)."""
