"""Numbers that the whole package shares."""

SPEED_OF_SOUND = 343.0
"""Metres per second, in air of 20 degrees Celsius."""

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""
