"""The two errors that are written for the person who reads them."""


class InputError(ValueError):
    """What the user gave cannot be used. The message says what was given, what was expected and what to do."""


class MissingExtraError(ImportError):
    """An optional dependency is not installed. The message names the extra that brings it."""
