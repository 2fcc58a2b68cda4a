"""Several processes at one fit: sums over all of them, and one rank's failure as everybody's error.

Everything that is exchanged goes through :class:`Group`, which has connections of its own. A rank that fails leaves its error
in the store of ``torch.distributed`` and closes its connections; a rank that is killed has them closed for it. The others,
waiting for a sum that will never come, notice at once, look for the error and stop with it. One that hangs is given up after
`timeout`.
"""

import contextlib
import datetime
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_store

from ntkgp._system.errors import GroupError

MESSAGE = 2000  # letters of an error that are passed on


@dataclass
class Traffic:
    """What one rank has put into collectives, in bytes: payloads by kind, and the protocol around them."""

    reduced: int = 0  # summed over the ranks: a ring moves 2(R − 1)/R times this over each link
    gathered: int = 0  # collected by every rank
    broadcast: int = 0  # sent by rank 0 to all
    protocol: int = 0  # sizes and decisions
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
        >>> group = ntkgp.distributed.Group()
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
            raise TypeError(f"group must be a process group of torch.distributed or an ntkgp.distributed.Group, got {given!r}")
        self.rank, self.size, self.timeout, self.memory = dist.get_rank(given), dist.get_world_size(given), timeout, memory
        if self.rank < 0:
            raise ValueError("this process is not a member of the group; call only where it is")
        ranks, limit = dist.get_process_group_ranks(given), datetime.timedelta(seconds=timeout)
        self._ranks = ranks
        some = len(ranks) < dist.get_world_size()  # then the others do not know of it
        self._make: Callable[[str], Any] = lambda backend: dist.new_group(
            ranks, timeout=limit, backend=backend, use_local_synchronization=some
        )
        self._control: Any = self._make("gloo")
        self._data: Any = None  # made when something lies on a GPU
        self._broken = False
        # Torch has no public name for it. The prefix is the same on all ranks, and no other group's.
        self._store, self._name = _get_default_store(), f"ntkgp/{self._control.group_name}"
        self.traffic = Traffic()

    @classmethod
    def of(cls, given: "Group | dist.ProcessGroup | None") -> "Group | None":
        """What a user passes as group: one of these, a process group of ``torch.distributed``, or None."""
        return given if given is None or isinstance(given, Group) else cls(given)

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
        self.any(False)  # nobody leaves before all have come through

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, on all of them and in place. Traffic: the size of `values`."""
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

    def _tell(self, error: BaseException) -> None:
        """Leave word for the others and close the connections, which wakes them."""
        if self._broken:
            return
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} (in {os.path.basename(where.filename)}:{where.lineno})"
        with contextlib.suppress(RuntimeError):  # the store may be gone, with whoever hosted it
            self._store.set(f"{self._name}/{self.rank}", message[:MESSAGE])
        self._close()

    def _close(self) -> None:
        """Nothing more can be exchanged; the process group this was made from is as it was."""
        self._broken = True
        for group in (self._control, self._data):
            if group is not None:
                with contextlib.suppress(RuntimeError, ValueError):
                    dist.destroy_process_group(group)
        self._control = self._data = None

    def _said(self) -> str:
        """What ranks that failed have left, waiting a moment for it."""
        for _ in range(20):
            with contextlib.suppress(RuntimeError):
                keys = {rank: f"{self._name}/{rank}" for rank in range(self.size)}
                found = {rank: self._store.get(key).decode() for rank, key in keys.items() if self._store.check([key])}
                if found:
                    return "; ".join(f"rank {rank} stopped: {text}" for rank, text in found.items())
            time.sleep(0.05)
        return ""

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
            raise GroupError("this group has lost a rank; make a new one on all ranks, or start all processes again")
        try:
            yield
        except RuntimeError as error:
            slow = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            said = "" if slow else self._said()
            self._close()
            what = f"did not answer within {self.timeout:g} s" if slow else "was lost: killed, out of memory, or its machine"
            raise GroupError(
                said
                or f"another rank {what} (noticed by rank {self.rank} of {self.size}); start all processes again, from the "
                f"checkpoint where there is one. torch says: {str(error).splitlines()[0][:300]}"
            ) from error
