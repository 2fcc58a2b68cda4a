"""Training in the explorer stops, resumes and reaches the analytic answer."""

from dataclasses import replace

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")


import torch

from ntkgp.apps.explorer.model.compute import answer
from ntkgp.apps.explorer.model.state import StateError, start
from ntkgp.apps.explorer.model.training import Training
from tests.support import oracle
from tests.support.explorer_states import SMALL


def test_training_stops_resumes_and_reaches_the_analytic_answer():
    state = replace(SMALL, width=64, tail=2)
    got = answer(state)
    training = Training(state, got)
    assert training.networks == 1 + 3 + 2
    with pytest.raises(ValueError, match="advance"):
        training.look()
    training.advance(0.0)
    first = training.look()
    assert first.step == 1
    assert torch.equal(training.look().mean, first.mean)  # looking does not train
    while not training.finished:
        training.advance(0.5)
    now = training.look()
    assert now.step > 1
    assert now.mean_error < 0.02 < first.mean_error
    assert now.std_error < 0.02
    assert oracle.error(now.predictors, got.predictors) < 0.02  # signs too
    training.advance(1.0)
    assert training.look().step == now.step


def test_training_begins_at_the_prior_with_adam():
    state = replace(SMALL, trainer="adam", signal=1.0)
    got = answer(state)
    training = Training(state, got)
    training.advance(0.0)
    first = training.look()
    assert oracle.error(first.variance, got.prior) < 1e-3
    training.close()
    training.advance(1.0)
    assert training.finished


def test_there_must_be_something_to_train_on():
    with pytest.raises(StateError, match="add a point"):
        Training(start("empty"), answer(start("empty")))
