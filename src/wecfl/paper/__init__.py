"""The paper's tables and figures: definitions, the queue of runs, and what is made of them."""
