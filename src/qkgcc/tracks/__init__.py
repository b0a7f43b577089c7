"""Sources that move, each with an id. `qkgcc.arrays` has the public names."""
