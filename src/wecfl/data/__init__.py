"""Where clients' data come from: data sets, partitions that divide them, and federations."""
