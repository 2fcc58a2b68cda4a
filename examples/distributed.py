"""One fit over several processes: each has a shard of the data, and all get the posterior of all data.

Run with ``torchrun --nproc-per-node 2 examples/distributed.py``; without torchrun it is a group of one. Every rank makes the
same network (same seed) and its own shard of the points. Here the points are random; in practice each rank reads its own files.
With ``NTKGP_CHECKPOINT=folder`` the fit saves a checkpoint, and an interrupted fit resumes from it.

``NTKGP_SMALL=1`` makes it a smoke test.
"""

import os
import tempfile

import torch
import torch.distributed as dist

import ntkgp

SMALL = os.environ.get("NTKGP_SMALL") == "1"
POINTS, WIDTH, RANK = (300, 16, 16) if SMALL else (20_000, 64, 64)


def shard(rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The points of one rank: uneven on purpose, because shards may have any size."""
    g = torch.Generator().manual_seed(100 + rank)
    count = POINTS // size + (7 if rank == 0 else 0)
    x = torch.randn(count, 4, generator=g)
    return x, torch.sin(2 * x[:, 0]) * x[:, 1] + 0.1 * torch.randn(count, generator=g)


def main() -> None:
    torch.set_num_threads(1)
    alone = {} if "RANK" in os.environ else {"init_method": f"file://{tempfile.mkdtemp()}/store", "rank": 0, "world_size": 1}
    by_gpu = torch.cuda.is_available() and not alone
    dist.init_process_group("nccl" if by_gpu else "gloo", **alone)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if by_gpu else torch.device("cpu")
    group = ntkgp.distributed.Group(timeout=300)

    x, y = (t.to(device) for t in shard(group.rank, group.size))
    net = ntkgp.mlp(4, width=WIDTH, activation=torch.nn.SiLU(), generator=torch.Generator().manual_seed(0)).to(device)
    posterior = ntkgp.fit(
        net, x, y, noise_var=0.01, method=ntkgp.LowRank(rank=RANK, draws=8, side="weights"),
        generator=torch.Generator().manual_seed(0), group=group,
        checkpoint=os.environ.get("NTKGP_CHECKPOINT"),  # a folder, the same on all ranks
    )  # fmt: skip

    # Every rank can predict on its own. Here each takes a part of the queries.
    questions = torch.linspace(-3, 3, 13, device=device).unsqueeze(1) * torch.tensor([[1.0, 0.3, 0.0, 0.0]], device=device)
    p = posterior.predict(questions[group.rank :: group.size])
    total = sum(group.facts(len(x)))
    if group.first:
        moved = group.traffic.reduced / 2**20
        print(f"{group.size} process(es), {total} points; {moved:.1f} MiB summed by each rank")
        print(f"{'x':>6} {'mean':>8} {'std':>8} {'bracket of the std':>22}")
        rows = torch.stack([questions[:: group.size, 0], p.mean, p.std, p.lower.sqrt(), p.upper.sqrt()], dim=1).tolist()
        for at, mean, std, lower, upper in rows:
            print(f"{at:6.2f} {mean:8.3f} {std:8.3f} {lower:11.3f} {upper:10.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
