"""Long work survives: stopped after any write and begun again, a fit ends where it would have; so do the ranks of a group."""

import contextlib
import errno
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.problem.operators import Operators
from ntkgp.storage import file as storage_file
from ntkgp.storage import stages
from ntkgp.tangent import jacobian as jacobian_module
from tests.support.cases import by_name
from tests.support.helpers import seeded
from tests.support.ranks import METHODS, TIMEOUT, Died, results, run, shard_of
from tests.support.resumable import RESUMABLE, fitted, values


class Stop(BaseException):
    """Something that is no error."""


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int):
    """From the n-th write on, the process is as good as dead."""
    count, keep = [0], stages.write

    def write(*arguments):
        count[0] += 1
        if count[0] > after:
            raise Stop
        keep(*arguments)

    monkeypatch.setattr(stages, "write", write)
    return count


@pytest.fixture
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch):
    """Sums over the points in blocks of two: there is something to save in between."""
    parameters = sum(p.numel() for p in by_name("paper mlp").module().parameters())
    monkeypatch.setattr(jacobian_module, "working_bytes", lambda device: 3 * 8 * parameters * 2)


@pytest.mark.usefixtures("_few_at_a_time")
@pytest.mark.parametrize("method", RESUMABLE)
def test_a_fit_begun_again_ends_bit_for_bit_where_it_would_have(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = fitted(method, None)
    with monkeypatch.context() as patch:
        count = interrupted(patch, after=10**9)
        assert torch.equal(values(fitted(method, tmp_path / "never")), values(whole))
    writes = count[0]
    assert writes >= 4
    for k, after in enumerate(sorted({1, 2, 3, writes // 2, writes - 1})):
        folder = tmp_path / str(k)
        for more in (after, 2):  # killed twice, unless few writes were left
            with monkeypatch.context() as patch, contextlib.suppress(Stop):
                interrupted(patch, more)
                fitted(method, folder)
        g = seeded(99)  # another seed: that of the first fit counts
        assert torch.equal(values(fitted(method, folder, g)), values(whole))


def test_the_generator_ends_where_it_would_have(tmp_path: Path):
    one, other = seeded(), seeded()
    fitted("rank", tmp_path, one)
    fitted("rank", tmp_path, other)
    assert torch.equal(one.get_state(), other.get_state())


def test_without_a_generator_the_first_seed_counts(tmp_path: Path):
    case = by_name("paper mlp")
    with torch.random.fork_rng():
        first = values(case.fit(METHODS["rank"], checkpoint=str(tmp_path)))
        again = values(case.fit(METHODS["rank"], checkpoint=str(tmp_path)))
    assert torch.equal(first, again)


def test_a_checkpoint_of_another_fit_is_refused(tmp_path: Path):
    case, other = by_name("paper mlp"), by_name("trigonometric inputs")
    fitted("rank", tmp_path)
    keep = ntkgp.storage.Checkpoint(tmp_path)
    options = {"noise_var": 0.01, "method": METHODS["rank"], "checkpoint": keep}
    for words, attempt in {
        "method was": lambda: case.fit(ntkgp.LowRank(rank=2), checkpoint=keep),
        "points was": lambda: ntkgp.fit(case.module(), case.x[:9], case.y[:9], **options),
        "residuals was": lambda: ntkgp.fit(case.module(), case.x, 2 * case.y, **options),
        "another fit: (parameters|module) was": lambda: other.fit(METHODS["rank"], checkpoint=keep),
    }.items():
        with pytest.raises(ValueError, match=words):
            attempt()


def small_net(activation: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), activation, nn.Linear(6, 1)).double()


def small_fit(folder: Path, x: Tensor, y: Tensor, activation: nn.Module | None = None, method: str = "rank"):
    module = small_net(nn.Tanh() if activation is None else activation)
    return ntkgp.fit(module, x, y, noise_var=0.1, method=METHODS[method], generator=seeded(), checkpoint=folder)


X = torch.randn(12, 2, generator=seeded()).double()
Y = torch.tensor([1.0, -1.0, -1.0, 1.0] * 3).double()
OTHER_FITS = {
    "other points": (X + 1, Y, None, "inputs"),
    "points in another order": (X.flip(0), Y, None, "inputs"),
    "mirrored points": (-X, Y, None, "inputs"),
    "one point a little elsewhere": (X.index_add(0, torch.tensor([7]), torch.full((1, 2), 1e-12).double()), Y, None, "inputs"),
    "targets in another order": (X, torch.tensor([-1.0, 1.0, 1.0, -1.0] * 3).double(), None, "residuals"),
    "targets and points in another order": (X.flip(0), Y.flip(0), None, "inputs"),
    "negated targets": (X, -Y, None, "residuals"),
    "another activation": (X, Y, nn.Sigmoid(), "outputs"),
}


@pytest.mark.parametrize("method", ["rank", "gd"])
@pytest.mark.parametrize("kind", OTHER_FITS)
def test_a_checkpoint_of_similar_data_is_refused(kind: str, method: str, tmp_path: Path):
    """Also if only one stage of the other fit is left."""
    x, y, activation, what = OTHER_FITS[kind]
    small_fit(tmp_path, X, Y, method=method)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"belongs to another fit: {what} was .* and is now .*; pass another folder"):
            small_fit(tmp_path, x, y, activation, method)
        (tmp_path / "start.safetensors").unlink()


def test_a_linear_shift_of_the_function_is_another_fit(tmp_path: Path):
    """The same outputs with another Jacobian, and the same Jacobian with other outputs."""

    class Frozen(nn.Module):
        def __init__(self, slope: float, shift: float):
            super().__init__()
            self.weight, self.slope, self.shift = nn.Parameter(torch.zeros(2).double()), slope, shift

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight * self.slope + self.shift

    def fit(slope: float, shift: float):
        method = ntkgp.LowRank(rank=1)
        return ntkgp.fit(Frozen(slope, shift), X, Y, noise_var=0.1, method=method, generator=seeded(), checkpoint=tmp_path)

    fit(1.0, 1.0)
    for slope, shift, what in ((1.0, 2.0, "outputs"), (2.0, 1.0, "outputs|prior_variance")):
        with pytest.raises(ValueError, match=f"another fit: ({what}) was"):
            fit(slope, shift)


def identity(rank: int, size: int, how: str, loader: bool, dtype: torch.dtype) -> dict:
    case, x, y, noise = shard_of("two outputs", size, rank, how, loader)
    group, method = ntkgp.distributed.Group(timeout=TIMEOUT), ntkgp.LowRank(rank=2, dtype=dtype)
    posterior = ntkgp.fit(case.module(), x, y, noise_var=noise, method=method, generator=seeded(), group=group,
                          prior_mean=ntkgp.network_mean)  # fmt: skip
    return posterior.problem.identity


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["float64", "float32"])
@pytest.mark.parametrize(("how", "loader"), [("uneven", False), ("even", True)], ids=["tensors", "batches"])
def test_the_identity_does_not_depend_on_the_ranks(how: str, loader: bool, dtype: torch.dtype, rtol: float):
    case = replace(by_name("two outputs"), prior_mean=ntkgp.network_mean)
    alone = case.fit(ntkgp.LowRank(rank=2, dtype=dtype), generator=seeded()).problem.identity
    for found in results(3, identity, 3, how, loader, dtype):
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            assert found[name] == (pytest.approx(value, rel=rtol) if isinstance(value, float) else value)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path):
    fitted("rank", tmp_path)
    path = tmp_path / "head.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"head\.safetensors is damaged"):
        fitted("rank", tmp_path)


def test_a_full_disk_is_a_warning_and_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = values(fitted("rank", None))
    count, keep = [0], storage_file.save_file

    def full(*arguments, **options):
        count[0] += 1
        if 4 < count[0] < 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        keep(*arguments, **options)

    monkeypatch.setattr(storage_file, "save_file", full)
    with pytest.warns(ntkgp.storage.CheckpointWarning, match=r"No space left on device.*still holds the previous one"):
        assert torch.equal(values(fitted("rank", tmp_path)), whole)
    assert not list(tmp_path.glob(".*"))
    assert torch.equal(values(fitted("rank", tmp_path)), whole)


def test_stopped_by_hand_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    product, calls = Operators.normal, [0]

    def stopping(self: Operators, v: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 15:
            raise KeyboardInterrupt
        return product(self, v)

    with monkeypatch.context() as patch:
        patch.setattr(Operators, "normal", stopping)
        with pytest.raises(KeyboardInterrupt, match=r"fit again with checkpoint=.* to resume"):
            fitted("rank", tmp_path)
    assert torch.equal(values(fitted("rank", tmp_path)), values(fitted("rank", None)))


def test_an_unwritable_folder_is_an_error_at_once(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write checkpoints to .*pass another folder"):
        fitted("rank", tmp_path / "file" / "folder")


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
@pytest.mark.parametrize(("method", "stage"), [
    ("rank", "side"), ("rank", "head"), ("rank", "solve"), ("gd", "plan"), ("gd", "training-0-4")])  # fmt: skip
def test_what_is_no_file_is_a_warning_and_stays(method: str, stage: str, kind: str, tmp_path: Path):
    path, elsewhere = tmp_path / f"{stage}.safetensors", tmp_path / "elsewhere"
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to(elsewhere)}[kind]()
    before = _identity(path)
    with pytest.warns(ntkgp.storage.CheckpointWarning, match="could not write a checkpoint .* must be a plain file"):
        found = values(fitted(method, tmp_path))
    assert torch.equal(found, values(fitted(method, None)))
    assert _identity(path) == before
    assert not elsewhere.exists()


def _identity(path: Path) -> tuple[int, ...]:
    """What a file is, apart from when it was last looked at."""
    found = path.lstat()
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def test_a_start_that_is_no_file_is_an_error_at_once(tmp_path: Path):
    (tmp_path / "start.safetensors").mkdir()
    with pytest.raises(OSError, match=r"cannot write checkpoints to .* must be a plain file.*pass another folder"):
        fitted("rank", tmp_path)


def test_bad_arguments():
    with pytest.raises(TypeError, match="checkpoint must be a folder"):
        ntkgp.storage.Checkpoint("")
    with pytest.raises(ValueError, match="every must be a number of seconds"):
        ntkgp.storage.Checkpoint("folder", every=-1)


def killed_fit(rank: int, size: int, folder: str, kill: int, method: str, memory: int | None):
    """Rank `size` − 1 is killed in its `kill`-th product, or nobody."""
    case, x, y, noise = shard_of("paper mlp", size, rank, "uneven")
    product, calls = Operators.normal, [0]

    def counted(self: Operators, v: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == kill and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return product(self, v)

    Operators.normal = counted
    keep, group = ntkgp.storage.Checkpoint(folder, every=0), ntkgp.distributed.Group(timeout=TIMEOUT, memory=memory)
    posterior = ntkgp.fit(
        case.module(), x, y, noise_var=noise, method=METHODS[method], generator=seeded(), group=group, checkpoint=keep
    )
    iterations = posterior.solution.iterations if isinstance(posterior, LowRankPosterior) else 0
    return values(posterior), calls[0], iterations


@pytest.mark.parametrize(("method", "memory"), [("rank", None), ("rank", 1), ("rtol", None)], ids=["copies", "split", "rtol"])
def test_a_run_that_lost_a_rank_goes_on_with_fewer(method: str, memory: int | None, tmp_path: Path):
    expected = values(fitted(method, None))
    everyone = results(3, killed_fit, 3, str(tmp_path / "whole"), 0, method, memory)[0]
    for k, kill in enumerate((3, 10, everyone[1] - 2)):  # looking for the head, bounding the rest, solving
        folder = str(tmp_path / str(k))
        found = run(3, killed_fit, 3, folder, kill, method, memory)
        assert isinstance(found[2], Died)
        assert all(isinstance(answer, ntkgp.distributed.GroupError) for answer in found[:2])
        for answer, calls, _ in results(2, killed_fit, 2, folder, 0, method, memory):
            torch.testing.assert_close(answer, expected, rtol=1e-8, atol=1e-8)
            assert k == 0 or calls < everyone[1]  # not all was done again


def trained_in_group(rank: int, size: int, folder: str, stop_after: int):
    case, x, y, noise = shard_of("paper mlp", size, rank, "even")
    keep, write, count = ntkgp.storage.Checkpoint(folder, every=0), stages.write, [0]

    def stopping(path: Path, *arguments) -> None:
        count[0] += "training" in str(path)
        if stop_after and count[0] > stop_after:
            raise RuntimeError("enough")
        write(path, *arguments)

    stages.write = stopping
    posterior = ntkgp.fit(
        case.module(), x, y, noise_var=noise, method=METHODS["gd"], generator=seeded(),
        group=ntkgp.distributed.Group(timeout=TIMEOUT),
        checkpoint=keep,
    )  # fmt: skip
    return values(posterior)


def test_copies_in_training_are_taken_over_by_other_ranks(tmp_path: Path):
    expected = values(fitted("gd", None))
    found = run(3, trained_in_group, 3, str(tmp_path), 12)
    assert all(isinstance(answer, RuntimeError) for answer in found)
    assert len(list(tmp_path.glob("training-*"))) == 3
    for answer in results(2, trained_in_group, 2, str(tmp_path), 0):
        torch.testing.assert_close(answer, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("side", ["kernel", "weights"])
def test_a_file_of_the_user_is_not_deleted(side: str, tmp_path: Path):
    """It has the name of a stage that this fit does not use."""
    case = by_name("paper mlp")
    (tmp_path / "subspace-3.safetensors").write_bytes(b"precious")
    method = ntkgp.LowRank(rank=3, draws=2, side=side, svd=ntkgp.linalg.Lanczos())
    case.fit(method, generator=seeded(), checkpoint=tmp_path)
    assert (tmp_path / "subspace-3.safetensors").read_bytes() == b"precious"
