"""Layers and cells in files: one .npz archive of parameters, options and the dropout sequence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .cells import GRUCell, LSTMCell, RNNCell
from .layers import GRU, LSTM, MGU, RNN, SRU, IndRNN, MinGRU
from .recurrent import Recurrent
from .validation import Array, dropout_key

_FORMAT, _VERSION = "rnnkern", 1

_CLASSES: dict[str, type[Recurrent]] = {
    cls.__name__: cls
    for cls in (RNN, LSTM, GRU, MGU, IndRNN, SRU, MinGRU, RNNCell, LSTMCell, GRUCell)
}


def save(layer: Recurrent, path: str | os.PathLike[str]) -> None:
    """What `layer.save` does."""
    import json  # slow to import, and seldom needed

    cls = layer._known_class()
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "class": cls.__name__,
        "options": {name: getattr(layer, name) for name in cls._defaults()},
        "dtype": layer.dtype.name,
        "dropout_seed": layer._dropout_seed,
    }
    text = json.dumps(header, default=vars)  # vars of a Regularization, alone without a form there
    arrays: dict[str, Any] = {"header": np.array(text), **layer.params}
    with open(path, "wb") as file:  # np.savez would change a name without .npz
        np.savez(file, **arrays)


def read_archive(
    path: str | os.PathLike[str], what: str
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The JSON header, which has a "format", and the other arrays of an .npz file.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file: not ``what`` it should be.
    """
    import json

    with open(path, "rb") as file:
        try:
            # zipfile and NumPy's format raise nearly anything for damaged files.
            with np.load(file, allow_pickle=False) as archive:
                arrays: dict[str, Array] = dict(archive.items())
            header: dict[str, Any] = json.loads(str(arrays.pop("header")))
            header["format"]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{path}: not {what}, or damaged; {reason}") from error
    return header, arrays


def load(path: str | os.PathLike[str]) -> Any:
    """Return the layer or cell that `save` wrote: class, options, dtype and parameters.

    Gradients are zero. A layer with dropout goes on with the masks that the saved one would have
    drawn next.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file, is damaged, or is of a newer version.
    """
    header, arrays = read_archive(path, "a file that rnnkern saved")
    if header["format"] != _FORMAT:
        raise ValueError(f"{path}: not a file that rnnkern saved")
    if header.get("version") != _VERSION:
        raise ValueError(
            f"{path}: format version {header.get('version')!r}, but this rnnkern reads {_VERSION}"
        )
    try:
        return _rebuilt(header, arrays)
    except (KeyError, TypeError, ValueError, MemoryError) as error:
        raise ValueError(f"{path}: {error}") from error


def _rebuilt(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> Recurrent:
    if header["class"] not in _CLASSES:
        raise ValueError(
            f"unknown class {header['class']!r}; this rnnkern has {', '.join(_CLASSES)}"
        )
    cls = _CLASSES[header["class"]]
    layer = cls.__new__(cls)
    layer._build(header["dtype"], _options(cls, header["options"]))
    layer.load_state_dict(arrays)
    layer._dropout_seed = dropout_key("dropout_seed", header["dropout_seed"])
    return layer


def _options(cls: type[Recurrent], given: Any) -> dict[str, Any]:
    """Those of a header, which lacks what did not exist when it was written."""
    defaults = cls._defaults()
    known = isinstance(given, dict) and given.keys() <= defaults.keys()
    if not known or not {"input_size", "hidden_size"} <= given.keys():
        raise ValueError(f"options: expected {', '.join(defaults)}, got {given!r}")
    options = {**defaults, **given}
    if isinstance(options.get("regularization"), dict):
        from .regularization import Regularization

        options["regularization"] = Regularization(**options["regularization"])
    return options
