"""Thompson sampling in batches: Bayesian optimisation with functions drawn from the posterior.

Each round draws a few functions from the posterior of a network, maximises each by gradients, and evaluates all of these
points together. Every function gives a different guess, and there is no acquisition function to choose. Branin's function has
three maxima of equal height, 0.3979 below zero; one batch can explore all of them. ``condition_on_observations`` adds the
points to the model, and every other round tunes its hyper-parameters again.

``python examples/bayesopt_thompson.py`` writes ``bayesopt_thompson.png``; ``NTKGP_SMALL=1`` makes it a smoke test.
"""

import os

import torch
from botorch.test_functions import Branin
from botorch.utils.sampling import draw_sobol_samples, optimize_posterior_samples

from ntkgp import plots
from ntkgp.botorch import NTKGPModel

SMALL = os.environ.get("NTKGP_SMALL") == "1"
ROUNDS, BATCH, STARTS, STEPS = (2, 2, 16, 5) if SMALL else (10, 4, 256, 60)
CUBE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
BRANIN = Branin(negate=True).double()


def f(X: torch.Tensor) -> torch.Tensor:
    """Branin's function of a point in the unit square, to be maximised."""
    low, high = torch.as_tensor(BRANIN.bounds)
    return BRANIN(low + (high - low) * X).unsqueeze(-1)


def main() -> None:
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    X = draw_sobol_samples(CUBE, 1, 6, seed=0)[0]
    Y, best = f(X), []
    model = NTKGPModel(X, Y, steps=STEPS, generator=g)
    for k in range(ROUNDS):
        paths = model.sample_paths(BATCH, generator=g)
        new, promised = optimize_posterior_samples(paths, CUBE, raw_samples=STARTS, num_restarts=4)
        value = f(new)
        X, Y = torch.cat([X, new]), torch.cat([Y, value])
        tuned = k % 2 == 1
        model = NTKGPModel(X, Y, steps=STEPS, generator=g) if tuned else model.condition_on_observations(new, value)
        best.append(float(BRANIN.optimal_value - Y.max()))
        print(f"round {k + 1}: promised {promised.max():7.2f}, found {value.max():7.2f}, regret so far {best[-1]:.4f}")

    side = torch.linspace(0, 1, 60, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    figure = plots.figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    with torch.no_grad():
        mean = model.posterior(grid.unsqueeze(1)).mean.view(60, 60).T
    left.contourf(side, side, mean, levels=20, cmap="Greys_r")
    left.scatter(X[:6, 0], X[:6, 1], color="white", edgecolor="black", s=25, label="first points")
    dots = left.scatter(X[6:, 0], X[6:, 1], c=[k + 1 for k in range(ROUNDS) for _ in range(BATCH)], cmap="viridis", s=25)
    figure.colorbar(dots, ax=left, label="round")
    left.set(title=f"mean after {len(X)} evaluations", xlabel="x₁", ylabel="x₂")
    right.plot(range(1, ROUNDS + 1), best, "o-", color=plots.MEAN)
    right.set(yscale="log", xlabel=f"round of {BATCH} evaluations", ylabel="simple regret")
    right.spines[["top", "right"]].set_visible(False)
    figure.savefig("bayesopt_thompson.png", dpi=120)


if __name__ == "__main__":
    main()
