"""Collectives for a fit on several processes; if one rank fails, all ranks stop with its error.

All communication goes through :class:`Group`, which uses separate connections. A rank that fails writes its error to the store
of ``torch.distributed`` and closes its connections; if a rank is killed, the system closes them. The other ranks, waiting in a
collective, notice this at once, look up the error and raise it. After `timeout` they stop waiting for a rank that hangs.
"""

import contextlib
import datetime
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_store

from ntkgp._system.errors import GroupError

MAX_MESSAGE = 2000  # characters of an error message sent to the other ranks


@dataclass
class Traffic:
    """Bytes that one rank has sent into collectives: payload by kind, and protocol."""

    reduced: int = 0  # summed over the ranks; a ring moves 2(R − 1)/R times this over each link
    gathered: int = 0  # gathered on every rank
    broadcast: int = 0  # sent by rank 0 to all
    protocol: int = 0  # sizes and decisions
    calls: int = 0  # number of reductions

    def since(self, before: "Traffic") -> "Traffic":
        """The traffic since an earlier copy."""
        return Traffic(**{name: value - getattr(before, name) for name, value in vars(self).items()})


class Group:
    """The processes of one fit; each holds one shard of the data.

    Creates separate communicators for the ranks of the given process group (Gloo, and NCCL if the network is on a GPU), with a
    separate timeout, so it does not interfere with other collectives. All ranks must create the group, and then call the same
    functions in the same order.

    Args:
        process_group: a group of ``torch.distributed``; None takes the default group, which must be initialised.
        timeout: seconds that a rank waits for the others before it stops. This includes the time another rank reads its data.
        memory: bytes per rank for vectors over the weights; if the head needs more, the vectors are split over the ranks.
            None takes half of the free memory.

    Attributes:
        rank: the rank of this process.
        size: number of processes, R.
        traffic: bytes that this rank has sent into collectives.

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
                "torch.distributed is not initialised; start the script with torchrun and call "
                "torch.distributed.init_process_group() first"
            )
        if not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        given = dist.group.WORLD if process_group is None else process_group
        if not isinstance(given, dist.ProcessGroup):
            raise TypeError(f"group must be a process group of torch.distributed or an ntkgp.distributed.Group, got {given!r}")
        self.rank, self.size, self.timeout, self.memory = dist.get_rank(given), dist.get_world_size(given), timeout, memory
        if self.rank < 0:
            raise ValueError("this process is not a member of the process group; create Group only on its members")
        ranks, limit = dist.get_process_group_ranks(given), datetime.timedelta(seconds=timeout)
        self._ranks = ranks
        partial = len(ranks) < dist.get_world_size()  # then processes outside the group do not take part
        self._make: Callable[[str], Any] = lambda backend: dist.new_group(
            ranks, timeout=limit, backend=backend, use_local_synchronization=partial
        )
        self._control: Any = self._make("gloo")
        self._data: Any = None  # created for the first tensor on a GPU
        self._broken = False
        # torch has no public name for its store. The prefix is the same on all ranks and unique to this group.
        self._store, self._name = _get_default_store(), f"ntkgp/{self._control.group_name}"
        self.traffic = Traffic()

    @classmethod
    def of(cls, given: "Group | dist.ProcessGroup | None") -> "Group | None":
        """Convert the user's `group` argument: a Group, a process group of ``torch.distributed``, or None."""
        return given if given is None or isinstance(given, Group) else cls(given)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Make the block fail on all ranks or on none: send an error of this rank to the others, then raise it."""
        try:
            yield
        except GroupError:
            raise
        except BaseException as error:
            self._send_error(error)
            raise
        self.any(False)  # wait until all ranks have finished the block

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all ranks, in place and on all ranks. Traffic: the size of `values`."""
        self.traffic.reduced += values.numel() * values.element_size()
        self.traffic.calls += 1
        # Products arrive as a transposed view; sum the underlying matrix, so that the strides do not change.
        dense = values.T if values.ndim == 2 and not values.is_contiguous() and values.T.is_contiguous() else values
        wire = dense if dense.is_contiguous() else dense.contiguous()
        with self._lost_ranks():
            dist.all_reduce(wire, group=self._for(wire))
        return values if wire is dense else values.copy_(wire)

    def total(self, value: float) -> float:
        """Sum one number over all ranks."""
        return float(self.sum(torch.tensor([value], dtype=torch.float64)))

    def any(self, decision: bool) -> bool:
        """Return whether the decision is True on any rank."""
        flag = torch.tensor([int(decision)])
        self.traffic.protocol += 8
        with self._lost_ranks():
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._control)
        return bool(flag)

    def gather(self, values: Tensor) -> list[Tensor]:
        """Gather the tensors of all ranks on all ranks; first axes may differ in length. Traffic: the longest tensor."""
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = len(values)
        self.traffic.protocol += 8 * self.size
        with self._lost_ranks():
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
        """Gather one JSON value from each rank, on all ranks."""
        text = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
        return [json.loads(bytes(part.tolist())) for part in self.gather(text)]

    @overload
    def copied(self, values: Tensor, device: torch.device | None = None) -> Tensor: ...
    @overload
    def copied(self, values: Tensor | None, device: torch.device | None = None) -> Tensor | None: ...
    def copied(self, values: Tensor | None, device: torch.device | None = None) -> Tensor | None:
        """Copy rank 0's tensor (or None) to `device` on all ranks; if rank 0 passes None, all ranks must."""
        mine = values if self.first else None
        known = self.facts(None if mine is None else [list(mine.shape), str(mine.dtype)])[0]
        if known is None:
            return None
        shape, dtype = known
        if mine is None:
            wire = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        else:
            wire = mine.detach().contiguous().cpu()
        self.traffic.broadcast += wire.numel() * wire.element_size()
        if wire.numel():
            with self._lost_ranks():
                dist.broadcast(wire, self._ranks[0], group=self._control)
        return wire.to(torch.device("cpu") if device is None else device) if mine is None else mine

    def shared(self, generator: torch.Generator | None) -> torch.Generator:
        """Set the generator to rank 0's state; for None, return a new one seeded from rank 0's global generator."""
        if generator is None:
            seed = torch.randint(2**62, (1,)) if self.first else torch.empty(1, dtype=torch.int64)
            return torch.Generator().manual_seed(int(self.copied(seed)))
        state = self.copied(generator.get_state())
        if len(state) != len(generator.get_state()):
            raise ValueError(
                f"all ranks must use the same type of generator, got one on {generator.device} on rank {self.rank}; "
                "use CPU generators"
            )
        generator.set_state(state)
        return generator

    def agree(self, **facts: str) -> None:
        """Check that each named argument has the same value on all ranks."""
        everyone = self.facts(facts)
        for rank, theirs in enumerate(everyone):
            for name, value in everyone[0].items():
                if theirs.get(name) != value:
                    raise GroupError(
                        f"{name} differs between ranks: {value[:200]} on rank 0, {theirs.get(name, '')[:200]} on rank {rank}; "
                        "pass the same value on all ranks (create the module with the same seed, or load the same weights)"
                    )

    def _send_error(self, error: BaseException) -> None:
        """Write the error to the store and close the connections, which wakes the other ranks."""
        if self._broken:
            return
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} (in {os.path.basename(where.filename)}:{where.lineno})"
        with contextlib.suppress(RuntimeError):  # the process that hosted the store may be gone
            self._store.set(f"{self._name}/{self.rank}", message[:MAX_MESSAGE])
        self._close()

    def _close(self) -> None:
        """Close the connections of this group; the original process group is not affected."""
        self._broken = True
        for group in (self._control, self._data):
            if group is not None:
                with contextlib.suppress(RuntimeError, ValueError):
                    dist.destroy_process_group(group)
        self._control = self._data = None

    def _received_errors(self) -> str:
        """Read the errors of failed ranks from the store; wait up to a second for the first one."""
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
    def _lost_ranks(self) -> Iterator[None]:
        """Turn broken connections and timeouts into a GroupError."""
        if self._broken:
            raise GroupError("this group has lost a rank; create a new Group on all ranks, or restart all processes")
        try:
            yield
        except RuntimeError as error:
            slow = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            received = "" if slow else self._received_errors()
            # Frames of torch hold the connections open as long as somebody holds the error; other ranks would wait for them.
            traceback.clear_frames(error.__traceback__)
            self._close()
            what = f"did not answer within {self.timeout:g} s" if slow else "was lost (killed, out of memory or machine down)"
            raise GroupError(
                received
                or f"another rank {what}; noticed by rank {self.rank} of {self.size}. Restart all processes; a fit with a "
                f"checkpoint resumes there. The error of torch: {str(error).splitlines()[0][:300]}"
            ) from error
