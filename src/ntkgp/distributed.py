"""Several processes at one fit: who holds which rows, sums over all of them, and one rank's failure as everybody's error.

Everything that is exchanged goes through :class:`Group`. The protocol: each exchange begins with one number from every rank,
how it is doing. A rank that fails says so there, and the others stop with its error instead of waiting for a sum that will
never come. A rank that is killed closes its connections; one that hangs is given up after `timeout` seconds.
"""

import contextlib
import datetime
import json
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ntkgp._types import GroupError

FINE, FAILED = 0, 1
MESSAGE = 2000  # bytes of an error that travel


@dataclass
class Traffic:
    """What one rank has put into collectives, in bytes: payloads by kind, and the protocol around them."""

    reduced: int = 0  # summed over the ranks: a ring moves 2(R − 1)/R times this over each link
    gathered: int = 0  # collected by every rank
    broadcast: int = 0  # sent by rank 0 to all
    protocol: int = 0  # how everybody is doing, and sizes
    calls: int = 0  # reductions

    def since(self, before: "Traffic") -> "Traffic":
        """What came after an earlier copy."""
        return Traffic(**{name: value - getattr(before, name) for name, value in vars(self).items()})


class Group:
    """The processes of one fit, each with its own shard of the data.

    A communicator of its own beside the given process group (Gloo, and NCCL where the network is on a GPU), so that it does not
    meddle with other collectives, and with a timeout of its own. All ranks of the group must make it, and then call
    the same functions in the same order.

    Args:
        process_group: a group of ``torch.distributed``; None for the default one, which must be initialised.
        timeout: seconds that a rank waits for the others before it gives up. Reading the data of one rank counts.
        memory: bytes of memory that each rank gives to vectors over the weights; where the head needs more they are split over
            the ranks. None for half of the free memory.

    Attributes:
        rank: of this process.
        size: number of processes, R.
        traffic: bytes this rank has put into collectives.

    Example:
        >>> import tempfile, torch, ntkgp
        >>> store = f"file://{tempfile.mkdtemp()}/store"
        >>> torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)  # torchrun needs no arguments
        >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
        >>> shard = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> group = ntkgp.Group()
        >>> method = ntkgp.LowRank(rank=4)
        >>> posterior = ntkgp.fit(net, shard, shard[:, 0].sin(), noise_var=0.1, method=method, group=group)
        >>> group.size, group.traffic.reduced > 0
        (1, True)
        >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self, process_group: dist.ProcessGroup | None = None, *, timeout: float = 600.0, memory: int | None = None
    ) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "torch.distributed is not initialised; call torch.distributed.init_process_group() first, under torchrun or "
                "with the addresses of all ranks"
            )
        if not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        given = dist.group.WORLD if process_group is None else process_group
        if not isinstance(given, dist.ProcessGroup):
            raise TypeError(f"group must be a process group of torch.distributed or an ntkgp.Group, got {given!r}")
        self.rank, self.size, self.timeout, self.memory = dist.get_rank(given), dist.get_world_size(given), timeout, memory
        if self.rank < 0:
            raise ValueError("this process is not a member of the group; call only where it is")
        ranks, limit = dist.get_process_group_ranks(given), datetime.timedelta(seconds=timeout)
        self._ranks = ranks
        self._make: Callable[[str], Any] = lambda backend: dist.new_group(
            ranks, timeout=limit, backend=backend, use_local_synchronization=True
        )
        self._control, self._data = self._make("gloo"), None
        self.traffic = Traffic()
        self._broken, self._told = False, None

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What happens inside fails on all ranks or on none: an error here is told to the others before it goes on."""
        try:
            yield
        except GroupError:
            raise
        except BaseException as error:
            self._tell(error)
            raise
        self._check_in()  # nobody leaves before all have come through

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, on all of them and in place. Traffic: the size of `values`."""
        self._check_in()
        self.traffic.reduced += values.numel() * values.element_size()
        self.traffic.calls += 1
        # Products come as the transpose of what they were computed in; their layout is kept.
        dense = values.T if values.ndim == 2 and not values.is_contiguous() and values.T.is_contiguous() else values
        wire = dense if dense.is_contiguous() else dense.contiguous()
        with self._lost():
            dist.all_reduce(wire, group=self._for(wire))
        return values if wire is dense else values.copy_(wire)

    def total(self, value: float) -> float:
        """The sum of one number over all ranks."""
        return float(self.sum(torch.tensor([value], dtype=torch.float64)))

    def any(self, decision: bool) -> bool:
        """Whether it is so on some rank."""
        flag = torch.tensor([int(decision)])
        self.traffic.protocol += 8
        with self._lost():
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._control)
        return bool(flag)

    def gather(self, values: Tensor) -> list[Tensor]:
        """The tensors of all ranks, whose first axes may differ in length, on all ranks. Traffic: the longest of them."""
        self._check_in()
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = len(values)
        self.traffic.protocol += 8 * self.size
        with self._lost():
            dist.all_reduce(counts, group=self._control)
            longest = int(counts.max())
            wire = values.new_zeros(longest, *values.shape[1:])
            wire[: len(values)] = values
            parts = [torch.empty_like(wire) for _ in range(self.size)]
            self.traffic.gathered += wire.numel() * wire.element_size()
            if wire.numel():
                dist.all_gather(parts, wire, group=self._for(wire))
        return [part[:count] for part, count in zip(parts, counts.tolist(), strict=True)]

    def facts(self, mine: Any) -> list[Any]:
        """What each rank has to say, in JSON, on all ranks."""
        text = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
        return [json.loads(bytes(part.tolist())) for part in self.gather(text)]

    def copied(self, values: Tensor | None, device: torch.device | None = None) -> Tensor | None:
        """Rank 0's tensor (or None) on all ranks, on `device`."""
        known = self.facts(None if values is None or not self.first else [list(values.shape), str(values.dtype)])[0]
        if known is None:
            return None
        shape, dtype = known
        if self.first:
            assert values is not None
            wire = values.detach().contiguous().cpu()
        else:
            wire = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        self.traffic.broadcast += wire.numel() * wire.element_size()
        if wire.numel():
            with self._lost():
                dist.broadcast(wire, self._ranks[0], group=self._control)
        if self.first and values is not None:
            return values
        return wire.to(torch.device("cpu") if device is None else device)

    def shared(self, generator: torch.Generator | None) -> torch.Generator:
        """A generator in rank 0's state: the given one, or where None one seeded by rank 0's global one."""
        if generator is None:
            seed = torch.randint(2**62, (1,)) if self.first else None
            sent = self.copied(seed)
            assert sent is not None
            return torch.Generator().manual_seed(int(sent))
        state = self.copied(generator.get_state())
        assert state is not None
        if len(state) != len(generator.get_state()):
            raise ValueError(f"the generators of all ranks must be of one kind, got one on {generator.device} here; use CPU's")
        generator.set_state(state)
        return generator

    def agree(self, **facts: str) -> None:
        """Things that must be the same on all ranks, by the name of the argument they come from."""
        everyone = self.facts(facts)
        for rank, theirs in enumerate(everyone):
            for name, value in everyone[0].items():
                if theirs.get(name) != value:
                    raise GroupError(
                        f"{name} differs between ranks: {value[:200]} on rank 0, {theirs.get(name, '')[:200]} on rank {rank}; "
                        "pass the same on all of them (seed before the network is made, or load the same weights)"
                    )

    def _check_in(self, doing: int = FINE, message: str = "") -> None:
        """One number from every rank before each exchange; where one has failed, its error."""
        states = torch.tensor([doing], dtype=torch.int64)
        self.traffic.protocol += 8
        with self._lost():
            dist.all_reduce(states, op=dist.ReduceOp.MAX, group=self._control)
            if int(states) == FINE:
                return
            mine, parts = (
                message.encode()[:MESSAGE].ljust(MESSAGE),
                [torch.empty(MESSAGE, dtype=torch.uint8) for _ in self._ranks],
            )
            dist.all_gather(parts, torch.frombuffer(bytearray(mine), dtype=torch.uint8), group=self._control)
        if doing == FINE:
            said = [(rank, bytes(part.tolist()).decode(errors="replace").strip()) for rank, part in enumerate(parts)]
            raise GroupError("; ".join(f"rank {rank} stopped: {text}" for rank, text in said if text))

    def _tell(self, error: BaseException) -> None:
        """The others stop with this error at their next exchange."""
        if self._broken or error is self._told:
            return
        self._told = error
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} (in {os.path.basename(where.filename)}:{where.lineno})"
        with contextlib.suppress(GroupError):  # the first error is the one to show
            self._check_in(FAILED, message)

    def _for(self, wire: Tensor) -> Any:
        """The communicator for a tensor's device."""
        if wire.device.type == "cpu":
            return self._control
        if self._data is None:
            self._data = self._make("nccl" if wire.device.type == "cuda" and dist.is_nccl_available() else "gloo")
        return self._data

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        """Broken connections and timeouts in words."""
        if self._broken:
            raise GroupError("this group has lost a rank; start all processes again (from the checkpoint, where there is one)")
        try:
            yield
        except RuntimeError as error:
            self._broken = True
            slow = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            what = f"did not answer within {self.timeout:g} s" if slow else "was lost: killed, out of memory, or its machine"
            raise GroupError(
                f"another rank {what} (noticed by rank {self.rank} of {self.size}); start all processes again, from the "
                f"checkpoint where there is one. torch says: {str(error).splitlines()[0][:300]}"
            ) from error
