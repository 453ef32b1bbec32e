"""What a person looks at: the page, the figures, the tables, sentences, and trackers."""
