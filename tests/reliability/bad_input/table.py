"""The table: a kind of input, what an entry must do with it, and the entries it applies to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from tests.reliability.bad_input.given import INF, NAN, QUERY, Given, Outcome, X, Y, answered, net, refused, warned
from tests.reliability.bad_input.odd_inputs import (
    SQUARES,
    Batches,
    Lambda,
    buffered,
    counting,
    custom,
    halves,
    overwriting,
    partly,
    same_weights,
    shuffling,
    spoiled,
    with_value,
)
from tests.support.modules import SharedWeight, Squeezed, UsedTwice, in_place

FIT = ["fit exact", "fit low rank", "fit to a tolerance", "fit trained"]
UPDATE = ["update exact", "update low rank", "update trained"]
TUNE = ["tune", "warm_up"]
OWN = ["plan_training", "paper's mean"]
DATA = [*FIT, *UPDATE, *TUNE, *OWN]
KERNEL = ["kernel", "kernel_diag"]
ASK = [f"{how} {name}" for how in ("predict", "covariance", "sample") for name in ("exact", "low rank", "trained")]
SAVE = ["save exact", "save low rank", "save trained"]
RIM = ["sklearn", "botorch"]
NETWORK = [*FIT, *TUNE, *OWN, *KERNEL]
BATCHED = ["fit", *FIT, *UPDATE, "tune"]
NOISY = [*FIT, *UPDATE, *OWN]


@dataclass(frozen=True)
class Row:
    what: str
    given: Callable[[], Given]
    outcome: Outcome
    entries: list[str]


def row(what: str, outcome: Outcome, entries: list[str], **given: Any) -> Row:
    return Row(what, lambda: Given(**given), outcome, entries)


DUPLICATED = X[[0, 0, 1, 1, 2, 2]]
CONSTANT_FEATURE = torch.stack([X[:, 0], torch.ones(6, dtype=torch.float64)], dim=1)
TABLE = [
    # Shapes
    row("fewer targets than points", refused("y must have shape (6,)", "(5,)"), [*DATA, "tune_table"], y=Y[:5]),
    row("fewer targets than points", refused("inconsistent numbers of samples", "6", "5"), ["sklearn"], y=Y[:5]),
    row("fewer targets than points", refused("train_Y"), ["botorch"], y=Y[:5]),
    row("too many columns of targets", refused("1 output(s)", "y has shape (6, 3)"), [*DATA, "botorch"],
        y=Y.unsqueeze(1).expand(6, 3)),
    row("targets with three axes", refused("y must have shape", "(6, 1, 1)"), [*DATA, "tune_table"], y=Y.view(6, 1, 1)),
    row("targets with three axes", refused("train_Y"), ["botorch"], y=Y.view(6, 1, 1)),
    row("a target without an axis", refused("y must have shape"), [*DATA, "tune_table"], y=Y[0]),
    row("no points", refused("x must hold at least one point"), [*DATA, *KERNEL, "tune_table"], x=X[:0], y=Y[:0]),
    row("no points", refused("train_X", "at least one"), ["botorch"], x=X[:0], y=Y[:0]),
    row("no points", refused("0 sample"), ["sklearn"], x=X[:0], y=Y[:0]),
    row("a point without an axis", refused("x must hold at least one point"), [*DATA, *KERNEL, "tune_table"], x=X[0, 0]),
    row("points of another width", refused("x", "(6, 3)"), [*DATA, *KERNEL], x=torch.zeros(6, 3, dtype=torch.float64)),
    row("points without features", refused("x", "(6,)"), ["tune_table"], x=X[:, 0]),
    row("one point", answered, [*FIT, *UPDATE, *KERNEL, *OWN, "tune", "tune_table", "botorch"], x=X[:1], y=Y[:1]),
    row("one column of targets", answered, [*FIT, *OWN, "tune", "tune_table", "botorch"], y=Y.unsqueeze(1)),
    # Types and devices
    row("x is a list", refused("x must be a torch.Tensor", "list"), [*DATA, *KERNEL, "tune_table"], x=X.tolist()),
    row("x is a list", refused("train_X must be a torch.Tensor", "list"), ["botorch"], x=X.tolist()),
    row("x is an array", refused("x must be a torch.Tensor", "ndarray"), [*DATA, *KERNEL, "tune_table"], x=X.numpy()),
    row("y is a list", refused("y must be a torch.Tensor", "list"), [*DATA, "tune_table"], y=Y.tolist()),
    row("x is None", refused("x must be a torch.Tensor", "NoneType"), [*DATA, *KERNEL, "tune_table"], x=None),
    row("y is missing", refused("y is missing"), [*FIT, *UPDATE, "tune"], y=None),
    row("integer x", refused("x must be real floating point", "int64"), [*DATA, *KERNEL], x=X.long()),
    row("boolean x", refused("x must be real floating point", "bool"), [*DATA, *KERNEL], x=X > 0),
    row("complex x", refused("x must be real floating point", "complex"), [*DATA, *KERNEL], x=X.to(torch.complex128)),
    row("sparse x", refused("x must be a dense tensor"), [*DATA, *KERNEL], x=X.to_sparse()),
    row("integer y", refused("y must be real floating point", "int64"), [*DATA, "tune_table"], y=Y.long()),
    row("complex y", refused("y must be real floating point", "complex"), [*DATA, "tune_table"], y=Y.to(torch.complex128)),
    row("targets of text", refused("y must hold numbers, got text"), ["sklearn"], y=list("abcabc")),
    row("sparse y", refused("y must be a dense tensor"), [*DATA, "tune_table"], y=Y.to_sparse()),
    row("x elsewhere", refused("x is on meta", "cpu"), [*DATA, *KERNEL], x=X.to("meta")),
    row("y elsewhere", refused("y is on meta", "cpu"), [*DATA, "tune_table"], y=Y.to("meta")),
    row("noise elsewhere", refused("noise_var", "meta"), NOISY, noise_var=torch.ones(6, device="meta")),
    row("float32 x and y", answered, ["fit exact", "fit low rank", "fit trained", "kernel", "kernel_diag", "tune"],
        x=X.float(), y=Y.float()),
    row("a float32 network and float64 data", answered, [*FIT, *UPDATE, "tune", *KERNEL],
        module=lambda: net(dtype=torch.float32)),
    row("x that asks for gradients", answered, [*FIT, *OWN, "tune"], x=X.clone().requires_grad_()),
    row("y that asks for gradients", answered, [*FIT, *OWN, "tune"], y=Y.clone().requires_grad_()),
    row("x strided oddly", answered, [*FIT, *UPDATE, *KERNEL], x=X.T.contiguous().T),
    # Values
    row("NaN in x", refused("x holds NaN or infinity in row 5"), [*DATA, *KERNEL, "tune_table"], x=with_value(X, NAN)),
    row("NaN in x", refused("X contains NaN"), ["sklearn"], x=with_value(X, NAN)),
    row("NaN in x", refused("train_X", "NaN"), ["botorch"], x=with_value(X, NAN)),
    row("infinity in x", refused("x holds NaN or infinity in row 5"), [*DATA, *KERNEL, "tune_table"], x=with_value(X, -INF)),
    row("infinity in x", refused("X contains infinity"), ["sklearn"], x=with_value(X, INF)),
    row("NaN in y", refused("y holds NaN or infinity in row 5"), [*DATA, "tune_table"], y=with_value(Y, NAN)),
    row("NaN in y", refused("y contains NaN"), ["sklearn"], y=with_value(Y, NAN)),
    row("NaN in y", refused("train_Y", "NaN"), ["botorch"], y=with_value(Y, NAN)),
    row("infinity in y", refused("y holds NaN or infinity in row 5"), [*DATA, "tune_table"], y=with_value(Y, INF)),
    row("constant features", answered, [*FIT, *UPDATE, *KERNEL, *RIM, "tune"], x=CONSTANT_FEATURE),
    row("all points the same", answered, [*FIT, *UPDATE, *KERNEL, "tune", "botorch"], x=X[[2] * 6]),
    row("all inputs zero", answered, [*FIT, *UPDATE, *KERNEL, "tune"], x=torch.zeros(6, 2, dtype=torch.float64)),
    row("constant targets", answered, NOISY, y=torch.ones(6, dtype=torch.float64)),
    row("constant targets", warned("y is constant"), ["sklearn"], y=torch.ones(6, dtype=torch.float64)),
    row("all targets zero", answered, NOISY, y=torch.zeros(6, dtype=torch.float64)),
    row("copies with different targets", answered, [*FIT, *UPDATE, *OWN, *RIM, "tune", "tune_table"], x=DUPLICATED),
    row("x of 1e300", refused("x", "row 5"), [*FIT, *UPDATE, *OWN, *KERNEL], x=with_value(X, 1e300), module=SQUARES),
    row("x of 1e300 that saturates", answered, ["kernel"], x=with_value(X, 1e300)),
    row("x of 1e-300", answered, [*FIT, *UPDATE, *KERNEL, "tune"], x=with_value(X, 1e-300)),
    row("x of 1e30 in float32", refused("x", "row 5"), KERNEL,
        x=with_value(X, 1e30).float(), y=Y.float(), module=lambda: SQUARES().float()),
    row("y of 1e300", refused("y", "rescale"), [*FIT, *UPDATE, "tune", *OWN], y=with_value(Y, 1e300)),
    row("y of 1e-300", answered, [*FIT, "update exact"], y=1e-300 * Y),
    row("y of 1e300 and a float32 network", refused("y", "float64"), ["fit low rank", "fit to a tolerance"],
        y=with_value(Y, 1e300), module=lambda: net(dtype=torch.float32)),
    row("y of 1e100", answered, ["fit exact", "fit low rank", "update exact", "update low rank"], y=with_value(Y, 1e100)),
    row("an answer too large for the dtype of y", refused("float16", "row 0"), ["fit exact", "fit low rank"],
        y=Y.half(), query=1e4 * QUERY, module=SQUARES),
    # Noise
    row("no noise", refused("noise_var must be positive", "got 0"), [*NOISY, "tune"], noise_var=0.0),
    row("no noise", refused("noise_var must be positive"), RIM, noise_var=0.0),
    row("negative noise", refused("noise_var must be positive", "-0.1"), [*NOISY, "tune", *RIM], noise_var=-0.1),
    row("NaN noise", refused("noise_var must be positive and finite"), [*NOISY, "tune", *RIM], noise_var=NAN),
    row("infinite noise", refused("noise_var must be positive and finite"), [*NOISY, "tune"], noise_var=INF),
    row("too few noises", refused("noise_var", "(6,)", "(5,)"), [*NOISY, "tune"], noise_var=torch.ones(5)),
    row("noise as text", refused("noise_var", "'small'"), ["tune", *RIM], noise_var="small"),
    row("noise as text", refused("noise_var must be a number or a torch.Tensor", "str"), NOISY, noise_var="small"),
    row("no noise at all", refused("noise_var must be a number"), [*FIT, *OWN], noise_var=None),
    row("noise beyond all numbers", refused("noise_var"), NOISY, noise_var=10**400),
    row("complex noise", refused("noise_var must be real"), NOISY, noise_var=torch.ones(6, dtype=torch.complex64)),
    row("enormous noise", answered, NOISY, noise_var=1e12),
    row("noise of 1e300", answered, ["fit exact", "fit low rank", "update exact", "update low rank"], noise_var=1e300),
    row("noise below float32", warned("the solver reached"), ["fit low rank"], noise_var=1e-100,
        module=lambda: net(dtype=torch.float32)),
    row("tiny noise", answered, ["fit exact", "fit low rank", "update exact", "update low rank"], noise_var=1e-8),
    row("noise below rounding", warned("noise_var"), ["fit exact"], noise_var=1e-25, x=DUPLICATED),
    row("noise of very different sizes", answered, ["fit exact", "fit low rank", "update exact"],
        noise_var=torch.tensor([1e-6, 1e6, 1.0, 1e-3, 1e3, 1.0], dtype=torch.float64)),
    # Priors
    row("no prior variance", refused("prior_var must be positive", "got 0"), FIT, prior_var=0.0),
    row("prior variance as text", refused("prior_var", "'wide'"), FIT, prior_var="wide"),
    row("prior variance None", refused("prior_var"), FIT, prior_var=None),
    row("prior variance of 1e300", refused("prior_var"), FIT, prior_var=1e300),
    row("prior variance of 1e-300", answered, ["fit exact", "fit low rank"], prior_var=1e-300),
    row("prior variance of no layer", refused("prior_var names 'head'"), FIT, prior_var={"": 1.0, "head": 2.0}),
    row("prior mean of a wrong shape", refused("prior_mean must return", "(6, 1)"), [*FIT, "plan_training"],
        prior_mean=lambda x: torch.ones(3)),
    row("prior mean of NaN", refused("prior_mean returned NaN"), [*FIT, "plan_training"], prior_mean=lambda x: x[:, 0] * NAN),
    row("prior mean that overwrites x", refused("prior_mean changes its input in place"), [*FIT, "plan_training"],
        prior_mean=lambda x: x.zero_()[:, 0]),
    row("random prior mean", refused("prior_mean is random"), [*FIT, "plan_training"],
        prior_mean=lambda x: torch.randn(len(x), dtype=x.dtype)),
    row("prior mean that mixes points", refused("prior_mean at a point depends on the other points"), [*FIT, "plan_training"],
        prior_mean=lambda x: (x - x.mean(dim=0))[:, 0]),
    row("prior mean of an array", refused("prior_mean must return a floating tensor", "ndarray"), [*FIT, "plan_training"],
        prior_mean=lambda x: x[:, 0].numpy()),
    row("prior mean with dropout", refused("(Dropout) of prior_mean is in training mode", ".eval()"), [*FIT, "plan_training"],
        prior_mean=nn.Sequential(nn.Linear(2, 1, dtype=torch.float64), nn.Dropout(0.5))),
    row("prior mean as a number", refused("prior_mean must be None"), [*FIT, "plan_training"], prior_mean=0.5),
    row("a seed for a generator", refused("generator must be a torch.Generator", "int"), [*FIT, "update low rank", "tune"],
        generator=7),
    # Queries
    row("NaN in the query", refused("x holds NaN or infinity in row 2"), ASK, query=with_value(QUERY, NAN)),
    row("infinity in the query", refused("x holds NaN or infinity in row 2"), ASK, query=with_value(QUERY, INF)),
    row("a query of no points", refused("x must hold at least one point"), ASK, query=QUERY[:0]),
    row("a query of another width", refused("x must have shape (M, 2)", "(3, 3)"), ASK, query=QUERY[:, [0, 1, 1]]),
    row("a query without its axis", refused("x must"), ASK, query=QUERY[0]),
    row("a list for a query", refused("x must be a torch.Tensor", "list"), ASK, query=QUERY.tolist()),
    row("a query of integers", refused("x must be real floating point"), ASK, query=QUERY.long()),
    row("a sparse query", refused("x must be a dense tensor"), ASK, query=QUERY.to_sparse()),
    row("a query elsewhere", refused("x is on meta"), ASK, query=QUERY.to("meta")),
    row("a query of 1e300", refused("x", "row 2"), ASK, query=with_value(QUERY, 1e300), module=SQUARES),
    row("a query of 1e-300", answered, ASK, query=with_value(QUERY, 1e-300)),
    row("one query", answered, ASK, query=QUERY[:1]),
    row("a query in float32", answered, ["predict low rank", "covariance low rank", "predict trained"], query=QUERY.float()),
    row("the same query twice", answered, ASK, query=QUERY[[0, 0]]),
    row("a query of another width", refused("x2 must have shape (M, 2)"), ["kernel"], query=QUERY[:, :1]),
    row("NaN in the query", refused("x2 holds NaN"), ["kernel"], query=with_value(QUERY, NAN)),
    row("a query elsewhere", refused("x2 is on meta"), ["kernel"], query=QUERY.to("meta")),
    row("NaN in the query", refused("NaN"), ["sklearn"], query=with_value(QUERY, NAN)),
    row("a query of another width", refused("2 features"), ["sklearn"], query=QUERY[:, :1]),
    row("NaN in the query", refused("NaN"), ["botorch"], query=with_value(QUERY, NAN)),
    row("negative noise of the query", refused("noise_var must be positive"), ASK[:3], noise_var=-1.0),
    row("too much noise of the query", refused("noise_var", "(6,)"), ASK[:3], noise_var=torch.ones(6)),
    # Networks
    row("not a module", refused("module must be a torch.nn.Module"), NETWORK, module=lambda: torch.sin),
    row("no parameters", refused("module has no trainable parameters"), NETWORK, module=nn.Tanh),
    row("all frozen", refused("module has no trainable parameters", "frozen"), NETWORK,
        module=lambda: net().requires_grad_(False)),
    row("NaN weights", refused("'0.weight' holds NaN"), NETWORK, module=lambda: spoiled(NAN)),
    row("infinite weights", refused("'0.weight' holds NaN or infinity"), [*FIT, *KERNEL], module=lambda: spoiled(INF)),
    row("weights of 1e300", refused("x", "finite"), [*FIT, *KERNEL], module=lambda: spoiled(1e300, -1)),
    row("complex weights", refused("must be real floating point"), NETWORK,
        module=lambda: nn.Linear(2, 1, dtype=torch.complex128)),
    row("weights of two dtypes", refused("must share one dtype"), NETWORK, module=lambda: partly(torch.float32)),
    row("weights without values", refused("meta"), [*FIT, *TUNE, *KERNEL], module=lambda: net().to("meta")),
    row("an output that counts calls", refused("the module is stochastic"), NETWORK, module=custom(counting)),
    row("random outputs", refused("the module is stochastic"), NETWORK,
        module=custom(lambda m, x, out: out + torch.rand(()))),
    row("NaN out", refused("module returns NaN"), NETWORK, module=custom(lambda m, x, out: out * NAN)),
    row("NaN out for some points", refused("x", "row 5"), [*FIT, *OWN, *KERNEL],
        module=custom(lambda m, x, out: torch.where(x[:, :1] == X[5, 0], NAN, 1.0) * out)),
    row("a buffer that changes", refused("buffer 'count' changes"), NETWORK, module=custom(buffered)),
    row("an input that is overwritten", refused("the module changes its input"), NETWORK, module=custom(overwriting)),
    row("outputs that mix points", refused("depends on the other points"), [*FIT, *TUNE, *KERNEL],
        module=custom(lambda m, x, out: out - out.mean(dim=0))),
    row("two tensors out", refused("must return one tensor", "tuple"), NETWORK, module=custom(lambda m, x, out: (out, out))),
    row("three axes out", refused("must return shape"), NETWORK, module=custom(lambda m, x, out: out[..., None])),
    row("an error inside", refused("the module cannot be called on x"), NETWORK,
        module=custom(lambda m, x, out: out @ out)),
    row("dropout that is on", refused("training mode", "module.eval()"), NETWORK,
        module=same_weights(lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)))),
    row("in-place activations", answered, [*FIT, *UPDATE, *KERNEL, "tune", *SAVE], module=same_weights(in_place)),
    row("tied weights", answered, [*FIT, *UPDATE, *KERNEL], module=same_weights(SharedWeight),
        y=torch.stack([Y, -Y], dim=1)),
    row("a layer used twice", answered, [*FIT, *UPDATE, *KERNEL, "tune", *SAVE], module=same_weights(UsedTwice)),
    row("a lambda for activation", answered, [*FIT, *UPDATE, *KERNEL, "tune", "botorch", *SAVE], module=same_weights(Lambda)),
    row("outputs squeezed", answered, [*FIT, *UPDATE, *KERNEL, *SAVE], module=same_weights(Squeezed)),
    row("a weight that does nothing", answered, [*FIT, *UPDATE, *KERNEL, *SAVE],
        module=custom(lambda m, x, out: out.detach() * 0 + m.layer.bias * x[:, :1])),
    row("outputs without gradients", refused("does not depend on its trainable parameters"), NETWORK,
        module=custom(lambda m, x, out: out.detach())),
    row("a network of constants", answered, ["fit exact", *KERNEL], module=custom(lambda m, x, out: out * 0 + m.layer.bias)),
    # Batches
    row("batches", answered, ["fit", *FIT, "tune"], x=halves(), y=None),
    row("a generator that runs dry", refused("x must be a tensor or an iterable that can be read several times"), BATCHED,
        x=iter(halves()), y=None),
    row("no batches", refused("x gave no batches"), BATCHED, x=[], y=None),
    row("batches that are no pairs", refused("each batch must be a pair"), BATCHED, x=[X, X], y=None),
    row("batches of lists", refused("must be a torch.Tensor", "list"), BATCHED, x=[(X.tolist(), Y)], y=None),
    row("batches of several widths", refused("x", "(3, 1)"), BATCHED, x=[halves()[0], (X[3:, :1], Y[3:])], y=None),
    row("batches whose targets do not fit", refused("y must have shape (3,)"), BATCHED,
        x=[halves()[0], (X[3:], Y[:2])], y=None),
    row("an empty batch", refused("x must hold at least one point"), BATCHED, x=[halves()[0], (X[:0], Y[:0])], y=None),
    row("NaN in a later batch", refused("x holds NaN"), BATCHED, x=halves(with_value(X, NAN)), y=None),
    Row("batches that run dry", lambda: Given(x=Batches(lambda k: halves() if k == 1 else []), y=None),
        refused("x gave", "batches"), ["fit low rank", "fit to a tolerance"]),
    Row("batches that become fewer", lambda: Given(x=Batches(lambda k: halves()[: 2 if k < 4 else 1]), y=None),
        refused("every pass must give the same batches"), ["fit low rank", "fit to a tolerance"]),
    Row("batches that become more", lambda: Given(x=Batches(lambda k: halves() + (halves() if k > 3 else [])), y=None),
        refused("every pass must give the same batches"), ["fit low rank", "fit to a tolerance"]),
    Row("batches in another order", lambda: Given(x=Batches(lambda k: halves()[:: 1 if k < 4 else -1]), y=None),
        refused("every pass must give the same batches"), ["fit low rank", "fit to a tolerance"]),
    Row("a loader that shuffles", lambda: Given(x=shuffling(), y=None),
        refused("every pass must give the same batches", "shuffle"), ["fit low rank", "fit to a tolerance"]),
    # Two tensors
    row("batches and targets", refused("x must be a torch.Tensor"), [*FIT, *UPDATE, "tune"], x=halves()),
]  # fmt: skip
CASES = [pytest.param(r, entry, id=f"{entry}: {r.what}") for r in TABLE for entry in r.entries]
