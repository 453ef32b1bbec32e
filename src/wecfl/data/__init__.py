"""Where clients' data come from: data sets, the partitions that share them out, federations."""
