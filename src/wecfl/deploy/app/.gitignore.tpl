.federation/
runs/
