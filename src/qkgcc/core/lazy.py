"""Public names of a package that are imported when they are first used.

Whoever imports one name then loads the modules that this name needs, and no others.
"""

from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it: importing `typing` takes time in which Ctrl-C is a traceback
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def lazy_names(
    namespace: "dict[str, Any]", modules: "dict[str, str]"
) -> "tuple[Callable[[str], Any], Callable[[], list[str]]]":
    """`__getattr__` and `__dir__` of a package.

    Args:
        namespace: `globals()` of the package.
        modules: the module of each name. A module's own name stands for the module.
    """
    package = namespace["__name__"]

    def load(name: str) -> "Any":
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(modules[name])
        namespace[name] = value = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        return value

    return load, lambda: sorted({*namespace, *modules})
