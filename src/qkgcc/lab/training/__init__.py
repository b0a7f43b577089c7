"""Training: one loop for every network (`loop`), its settings (`config`), its data (`data`), its fast step (`step`)."""
