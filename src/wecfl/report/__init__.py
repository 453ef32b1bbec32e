"""Reports for people: the page, the figures, the tables, sentences about runs, and trackers."""
