"""Rooms and what is heard in them, on the CPU and the GPU."""
