"""Functions drawn from a posterior, as a deterministic BoTorch model."""

import torch
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.model import Model
from torch import Tensor

from ntkgp.apps.botorch.checks import checked_query
from ntkgp.posterior.samples import FunctionSample


def paths_of(model: Model, sample: FunctionSample, count: int, outputs: list[int]) -> GenericDeterministicModel:
    """Wrap the drawn functions in the transforms of a model; the result has batch shape (count,)."""
    each = [sample[k] for k in range(count)]
    transform = getattr(model, "outcome_transform", None)

    def values(functions: FunctionSample, X: Tensor) -> Tensor:
        found = functions(X.reshape(-1, X.shape[-1]))
        return found.reshape(len(found), *X.shape[:-1], -1)[..., outputs]

    def paths(X: Tensor) -> Tensor:
        model.eval()
        points = checked_query(model, X)
        batches = points if points.ndim > 2 else points.unsqueeze(0)
        if batches.shape[-3] == 1:  # all functions at the same points
            found = values(sample, batches.squeeze(-3)).movedim(0, -3)
        elif count == 1:
            found = values(sample, batches)[0]
        elif batches.shape[-3] == count:  # each function at its own points
            found = torch.cat([values(f, x) for f, x in zip(each, batches.unbind(-3), strict=True)]).movedim(0, -3)
        else:
            raise ValueError(
                f"X must have shape (q, d), (..., 1, q, d) or (..., {count}, q, d) for {count} paths, got {tuple(X.shape)}"
            )
        return (found if transform is None else transform.untransform(found, X=points)[0]).to(X.dtype)

    return GenericDeterministicModel(paths, len(outputs), torch.Size([count]))
