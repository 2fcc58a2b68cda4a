"""The factorised matrices inside of exact posteriors."""

import ntkgp
from ntkgp.posterior.exact.kernel_form import KernelForm
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.exact.weight_form import WeightForm


def kernel_form(posterior: ntkgp.posterior.Posterior) -> KernelForm:
    """What a posterior over the observations is made of."""
    assert isinstance(posterior, ExactPosterior)
    assert isinstance(posterior.form, KernelForm)
    return posterior.form


def weight_form(posterior: ntkgp.posterior.Posterior) -> WeightForm:
    """What a posterior over the weights is made of."""
    assert isinstance(posterior, ExactPosterior)
    assert isinstance(posterior.form, WeightForm)
    return posterior.form
