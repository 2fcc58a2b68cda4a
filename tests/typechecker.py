"""The type checker that jaxtyping runs under pytest: beartype, with an int welcome where a float is expected."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
