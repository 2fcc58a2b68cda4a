"""The type checker that jaxtyping runs under pytest: beartype, with an int welcome where a float is expected.

jaxtyping decorates a function inside a function again at every call of the outer one, and beartype would write and compile a
new check each time: that took half of the time of the tests. A check depends on the signature alone, so one is enough; every
call is still checked.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jaxtyping
from beartype import BeartypeConf, beartype

T = TypeVar("T")
_write_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_written: dict[tuple[Any, ...], Callable[..., Any]] = {}


def checked(signature: Callable[..., Any]) -> Callable[..., Any]:
    """The check of a signature, which jaxtyping passes as a function without a body."""
    if "<locals>" not in signature.__qualname__:
        return _write_check(signature)
    code, defaults = signature.__code__, (signature.__defaults__ or (), (signature.__kwdefaults__ or {}).values())
    names = (code.co_varnames, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    kinds = tuple(type(value) for group in defaults for value in group)
    key = (signature.__module__, signature.__qualname__, *names, kinds, *signature.__annotations__.items())
    try:
        known = _written.get(key)
    except TypeError:  # an annotation that cannot be hashed
        return _write_check(signature)
    if known is None:
        known = _written[key] = _write_check(signature)
    return known


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """No types and shapes are checked in this block, as when users run the library."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def repeated(items: Iterable[T]) -> Iterator[T]:
    """The items of a long loop. Types and shapes are checked in its first round, not in the repetitions."""
    for k, item in enumerate(items):
        with contextlib.nullcontext() if k == 0 else switched_off():
            yield item
