"""The torch half of the package: networks, their cost and their checkpoints. Nothing outside imports it eagerly."""
