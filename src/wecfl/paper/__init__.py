"""The paper's tables and figures: definitions, a queue of runs, and what is made of them."""
