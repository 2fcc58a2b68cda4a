"""A regression problem in a file: everything except the network, which the user must pass again to load it."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_data import check_noise, check_sizes
from ntkgp._system.check_options import check_positive
from ntkgp._system.types import MeanFunction
from ntkgp.linalg.bracket import ROUNDINGS
from ntkgp.linalg.head import Head
from ntkgp.problem.answers import Answers
from ntkgp.problem.batches import Batches
from ntkgp.problem.data import Absent, Data
from ntkgp.problem.operators import Operators
from ntkgp.problem.prior_mean import mean_function, network_mean
from ntkgp.problem.problem import Problem
from ntkgp.storage.fingerprint import check_same, dtypes_of, fingerprint
from ntkgp.storage.state import State
from ntkgp.tangent.layout import ParameterLayout
from ntkgp.tangent.network import PureNetwork
from ntkgp.tangent.opening import tangent_of


def problem_state(problem: Problem) -> State:
    """Return what is saved: points, residuals, noise, priors and a fingerprint of the network.

    Batches are not saved, except for two points. Points on several ranks are not saved either, nor their residuals and noise.
    """
    module, tangent, data, answers = problem.network.module, problem.operators.tangent, problem.data, problem.answers
    whole, rows = data.batches is None and data.shard is None, None if data.shard is None else 0
    absent = data.shard is not None or data.absent is not None
    with problem.network.lock:  # another thread may be calling the module with other weights
        digests, probe = fingerprint(module, problem.module_dtypes), _probe(problem)
    return State.of(
        x=data.x if whole else _two_points(problem),
        whole=whole,
        residual=data.residual[:rows],
        noise_std=data.noise_std[:rows],
        common_noise=data.common_noise,
        points=0 if absent else data.points,
        absent_points=data.points if absent else 0,
        absent_log_noise=_known_log_noise(data),
        parts=[list(arrival) for arrival in data.arrivals],
        outputs=problem.outputs,
        vector_output=answers.vector_output,
        user_dtype=_name(answers.dtype),
        prior_mean=answers.prior_mean_name,
        prior_std={name: tangent.scales[name] for name in tangent.layout.shapes},  # of the chosen parameters, in flat order
        module=digests,
        cast=None if dtypes_of(module) == problem.module_dtypes else _name(problem.network.dtype),
        layers=_layers(module),
        training=[path for path, part in module.named_modules() if part.training],
        probe=probe,
    )


def restore_problem(state: State, module: nn.Module, prior_mean: MeanFunction | None) -> Problem:
    """Rebuild the problem with a copy of `module`; raise if it is not the fitted one."""
    points, outputs, whole = state.fact("points", int), state.fact("outputs", int), state.fact("whole", bool)
    network, scales = _network(state, module), state.fact("prior_std", dict)
    state.sizes.update(N=points, C=outputs, NC=points * outputs)
    x = state.tensor("x", "N ..." if whole else "2 ...")
    try:
        tangent = tangent_of(network, x, outputs, scales)
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"the module cannot be called on the training points: {error}") from error
    state.sizes["P"] = tangent.layout.size
    if list(tangent.layout.shapes) != list(scales):  # another version or machine may order the layers differently
        state.orders["P"] = _order(tangent.layout, list(scales), network.device)
    noise_differs = state.facts.get("common_noise", "in the tensors") is None
    residual, noise_std = state.tensor("residual", "NC", network.dtype), state.tensor("noise_std", "NC", network.dtype)
    check_sizes(residual, noise_std)
    common = None if noise_differs else state.tensor("common_noise", "1 C", torch.float64)
    data = Data(
        x=x,
        residual=residual,
        noise_std=noise_std,
        outputs=outputs,
        common_noise=None if common is None else check_noise(common, (1, outputs), "common_noise"),
        batches=None if whole else Batches(_MissingBatches(), network.device),
        arrivals=_arrivals(state, points),
        absent=_absent(state),
    )
    mean = mean_function(_prior_mean(state, prior_mean), network, outputs, x)
    name, vector, dtype = state.fact("prior_mean", str), state.fact("vector_output", bool), state.dtype("user_dtype")
    answers = Answers(network, x.shape[1:], outputs, mean, name, vector, dtype)
    problem = Problem(network, data, Operators(tangent, data), answers, dtypes_of(module))
    _check_probe(problem, state)
    return problem


def restore_head(state: State, name: str, dtype: torch.dtype) -> Head:
    """Rebuild the head of a network in `dtype`; raise if it has negative numbers, which would give negative variances."""
    if not {f"{name}.unit", f"{name}.rounding"} & state.facts.keys():  # written before heads knew their rounding
        unit, norm = (
            torch.finfo(dtype).eps,
            float(state.tensor(f"{name}.values", "K").sum()) + state.fact(f"{name}.tail", float),
        )
        state.facts |= {f"{name}.unit": unit, f"{name}.rounding": ROUNDINGS * unit * norm}
    head = state.build(Head, name, torch.float64, v="P K", image="P K", values="K")
    if min(head.coupling, head.tail, head.rounding, head.unit, float(head.values.min())) < 0:
        raise ValueError(f"{name!r} must have no negative numbers in its values, coupling, tail, rounding and unit")
    try:
        head.explained(head.values.new_zeros(1, head.rank))
    except torch.linalg.LinAlgError as error:
        raise ValueError(f"{name!r} cannot be a head: {error}") from error
    return head


def _known_log_noise(data: Data) -> float:
    """Σ log σ over observations that a file will not contain, without asking other ranks; 0 if nothing needed it before."""
    if data.shard is not None:
        return vars(data).get("log_noise", 0.0)
    return 0.0 if data.absent is None else data.absent.log_noise


def _absent(state: State) -> Absent | None:
    if state.older:
        return None
    points, log_noise = state.fact("absent_points", int), state.fact("absent_log_noise", float)
    if points < 0:
        raise ValueError(f"'absent_points' must be a number of points, got {points}")
    return Absent(points, log_noise) if points else None


def _arrivals(state: State, points: int) -> tuple[tuple[int, int], ...]:
    parts = state.fact("parts", list)
    good = all(isinstance(part, list) and len(part) == 2 and all(type(n) is int and n > 0 for n in part) for part in parts)
    if not good or (parts and sum(n * times for n, times in parts) != points):
        raise ValueError(f"'parts' must list how the {points} points arrived, as [[size, times], ...], got {parts!r}")
    return tuple((n, times) for n, times in parts)


def _network(state: State, module: nn.Module) -> PureNetwork:
    cast = None if state.fact("cast", str, type(None)) is None else state.dtype("cast")
    check_same(module, state.fact("module", dict), cast)
    names, training = state.fact("prior_std", dict), state.fact("training", list)
    known = dict(module.named_parameters())
    if not names or any(name not in known for name in names):
        raise ValueError(f"'prior_std' must name parameters of the module, got {list(names)}")
    for name, std in names.items():
        check_positive("the file", **{f"prior_std of {name}": std})
    network = PureNetwork(module, cast, names)
    for path, part in network.module.named_modules():
        part.training = path in training  # restore the mode of the fit; this is our copy
    return network


def _prior_mean(state: State, given: MeanFunction | None) -> MeanFunction | None:
    name = state.fact("prior_mean", str)
    if name == "function":
        if given is None or given is network_mean:
            raise ValueError("the prior mean was a function, which files cannot store; pass it again as prior_mean=")
        return given
    if name not in ("zero", "network"):
        raise ValueError(f"'prior_mean' must be 'zero', 'network' or 'function', got {name!r}")
    if given is not None:
        raise ValueError(f"the prior mean is in the file ({name}); leave prior_mean out, or fit again with another prior mean")
    return network_mean if name == "network" else None


def _order(layout: ParameterLayout, stored: list[str], device: torch.device) -> Tensor:
    """Return where each of the P numbers of the flat layout is in the file, which orders the parameters differently."""
    places = torch.arange(layout.size, device=device).split([layout.shapes[name].numel() for name in stored])
    return torch.cat([places[stored.index(name)] for name in layout.shapes])


def _two_points(problem: Problem) -> Tensor:
    """Return two training points, the same on all ranks."""
    return problem.data.few[[0, -1]]


@torch.no_grad()
def _probe(problem: Problem) -> Float[Tensor, "3 2 C"]:
    """Evaluate output, prior variance and prior mean at two training points: another function would give other values."""
    few = _two_points(problem)
    values = [problem.network.initial(few).flatten(), problem.operators.kernel_at(few).diag(), problem.answers.mean_at(few)]
    return torch.stack(values).unflatten(1, (2, -1)).double()


def _check_probe(problem: Problem, state: State) -> None:
    """Raise if the module computes other values than the fitted one; equal weights do not show a changed activation."""
    before, now = state.tensor("probe", "3 2 C", torch.float64), _probe(problem)
    std, variance = before[1].abs().sqrt(), before[1].abs()
    # Another machine rounds differently; the largest difference comes from TF32 convolutions in a float32 network.
    slack = 10 * torch.finfo(problem.network.dtype).eps ** 0.5 * (before.abs() + torch.stack([std, variance, std]))
    wrong = (~((now - before).abs() <= slack)).flatten(1).any(dim=1).tolist()
    got, was = now[:, 0].tolist(), before[:, 0].tolist()
    if wrong[0] or wrong[1]:
        layers = _layers(problem.network.module)
        other = [f"layer {path!r} is {layers.get(path)}, was {kind}; "
                 for path, kind in state.fact("layers", dict).items() if layers.get(path) != kind]  # fmt: skip
        raise ValueError(
            f"the module has the weights of the fitted module but computes something else: {''.join(other[:1])}at the first "
            f"training point its output is {got[0]} (was {was[0]}) and its prior variance {got[1]} (was {was[1]}); pass the "
            "module that was fitted"
        )
    if wrong[2]:
        raise ValueError(
            f"prior_mean is not the function passed to fit: at the first training point it returns {got[2]}, not "
            f"{was[2]}; pass the same function"
        )


def _layers(module: nn.Module) -> dict[str, str]:
    return {path: type(part).__name__ for path, part in module.named_modules()}


class _MissingBatches:
    """Stands for training points that the file does not contain; raises when they are read."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        raise ValueError(
            "this needs the training points, which were given as batches or by a group and are not saved in files; fit again"
        )
        yield


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
