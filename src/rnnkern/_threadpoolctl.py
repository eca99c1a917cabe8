"""Lets threadpoolctl see and limit our threads, whichever of the two is imported first.

Importing it just to register would cost several milliseconds and set an environment variable, so a
finder waits until somebody else imports it.
"""

import sys
from collections.abc import Callable
from typing import Any

_NAME = "threadpoolctl"


def watch(get_num_threads: Callable[[], int], set_num_threads: Callable[[int], None]) -> None:
    """Registers a controller of these functions, now or when threadpoolctl is imported."""

    def register(module: Any) -> None:
        if not hasattr(module, "register"):  # before 3.2
            return

        class Controller(module.LibController):  # type: ignore[misc]
            user_api = internal_api = "rnnkern"
            filename_prefixes = ("_core.",)
            check_symbols = ("rnnkern_team_size",)  # others' modules may be named _core too

            def get_num_threads(self) -> int:
                return get_num_threads()

            def set_num_threads(self, num_threads: int) -> None:
                set_num_threads(num_threads)

            def get_version(self) -> str:
                from . import __version__

                return __version__

        module.register(Controller)

    if _NAME in sys.modules:
        register(sys.modules[_NAME])
    else:
        sys.meta_path.insert(0, _Finder(register))


class _Finder:
    """Finds threadpoolctl by the other finders, and calls back when it has been loaded."""

    def __init__(self, loaded: Callable[[Any], None]) -> None:
        self._loaded = loaded

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _NAME:
            return None
        for finder in sys.meta_path:
            spec: Any = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader, self._loaded)
                return spec
        return None


class _Loader:
    """Another loader, but for one thing more that it does with the module."""

    def __init__(self, loader: Any, loaded: Callable[[Any], None]) -> None:
        self._loader = loader
        self._loaded = loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        self._loaded(module)
