"""Pages of the explorer in the browser, and what they show."""

from ntkgp.apps.explorer.model.state import State

SMALL = State(points=((-2.0, 1.0), (0.5, -0.5), (2.0, 0.3)), noise_var=0.05, rank=2, width=64)


def link(state: State) -> str:
    return "?state=" + state.to_link()
