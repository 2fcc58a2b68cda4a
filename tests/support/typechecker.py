"""The type checker that jaxtyping runs under pytest: beartype, with an int welcome where a float is expected.

jaxtyping decorates a function inside a function again at every call of the outer one, and beartype would write and compile a
new check each time: that took half of the time of the tests. A check depends on the signature alone, so one is enough.
"""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_write_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_written: dict[tuple[Any, ...], Callable[..., Any]] = {}


def checked(signature: Callable[..., Any]) -> Callable[..., Any]:
    """The check of a signature, which jaxtyping passes as a function without a body."""
    if "<locals>" not in signature.__qualname__:
        return _write_check(signature)
    code, defaults = signature.__code__, (signature.__defaults__ or (), (signature.__kwdefaults__ or {}).values())
    names = (code.co_varnames, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    kinds = tuple(type(value) for group in defaults for value in group)
    key = (signature.__module__, signature.__qualname__, *names, kinds, tuple(signature.__annotations__.items()))
    try:
        if key not in _written:
            _written[key] = _write_check(signature)
    except TypeError:  # an annotation that cannot be hashed
        return _write_check(signature)
    return _written[key]
