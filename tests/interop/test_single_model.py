"""A randomized ensemble as one deterministic model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.attacks.cases import case
from tests.attacks.planted import linear
from tests.interop.test_foreign_attacks import package
from torch import nn

from randens import RandomizedEnsemble, interop
from randens.core.errors import InputError


def test_its_output_is_the_log_of_the_mean_softmax() -> None:
    given = case("zero-weight", "linf")
    z = interop.Mixture(given.rec)(given.x)
    softmax = given.rec.logits(given.x).double().softmax(dim=2)
    expected = torch.einsum("m,mnc->nc", given.rec.probs, softmax).log()
    assert torch.allclose(z.double(), expected, atol=1e-5)
    assert torch.allclose(z.exp().sum(dim=1), torch.ones(len(z), dtype=z.dtype))


def test_it_does_not_underflow_and_its_gradient_stays_finite() -> None:
    members = [linear(torch.tensor([[s, 0.0], [0.0, s]]), torch.zeros(2)) for s in (2000.0, -2000.0)]
    x = torch.tensor([[0.5, 0.25], [0.1, 0.9]], requires_grad=True)
    z = interop.Mixture(RandomizedEnsemble(members, [1.0, 0.0]))(x)
    assert torch.allclose(z.detach(), torch.tensor([[0.0, -500.0], [-1600.0, 0.0]]))
    (gradient,) = torch.autograd.grad(
        nn.functional.cross_entropy(z, torch.tensor([1, 0]), reduction="sum"), x
    )
    # −log p_y = z_other − z_y where y is hopeless: slope 2000 towards the other class.
    assert torch.allclose(gradient, torch.tensor([[2000.0, -2000.0], [-2000.0, 2000.0]]))


def test_its_argmax_is_not_the_randomized_ensemble() -> None:
    """Two members are slightly for class 0, one firmly for class 1: the mixture says 1, the draw says 0 twice in 3."""
    weak, strong = (
        linear(torch.zeros(2, 1), torch.tensor([0.1, 0.0])),
        linear(torch.zeros(2, 1), torch.tensor([0.0, 9.0])),
    )
    rec = RandomizedEnsemble([weak, weak, strong])
    x, y = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)
    assert int(interop.Mixture(rec)(x).argmax()) == 1
    assert float(rec.risk(x, y)) == pytest.approx(1 / 3)


def test_autoattack_takes_it_as_a_model_and_says_it_is_not_random(caplog: pytest.LogCaptureFixture) -> None:
    module = package("autoattack")
    given = case("convnet", "linf", n=16)
    model = interop.Mixture(given.rec).eval()
    suite = module.AutoAttack(model, eps=given.threat.eps, version="custom", attacks=["apgd-ce"], seed=0)
    suite.apgd.n_iter = 20
    x_adv, _ = suite.run_standard_evaluation(given.x, given.y, batch_size=16)
    assert "randomized" not in caplog.text
    fooled = (model(x_adv).argmax(dim=1) != given.y).float().mean()
    clean = (model(given.x).argmax(dim=1) != given.y).float().mean()
    assert float(fooled) > float(clean)
    # The same perturbations, as they count for the randomized ensemble: an exact sum.
    risk = given.rec.risk(given.threat.project(x_adv, given.x), given.y)
    assert float(risk.mean()) > float(given.rec.risk(given.x, given.y).mean())
    assert set(np.unique(risk.numpy())) <= {0.0, 0.5, 1.0}


def test_it_moves_and_counts_as_a_module() -> None:
    given = case("mlp", "linf")
    model = interop.Mixture(given.rec)
    assert len(list(model.parameters())) == 12
    assert model.passes == 3


def test_only_randomized_ensembles_have_one() -> None:
    with pytest.raises(InputError, match="rec is a Linear; give a RandomizedEnsemble"):
        interop.Mixture(nn.Linear(2, 2))  # type: ignore[arg-type]
