"""Losses, sampling and tasks of the training methods, computed by hand."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from compshift import GroupSpace, InputError
from compshift.distributed import ALONE
from compshift.methods.base import TrainingRows
from compshift.methods.crm import CRM
from compshift.methods.dfr import DFR
from compshift.methods.erm import ERM
from compshift.methods.group_dro import GroupDRO
from compshift.methods.invariance import IRM, VREx
from compshift.methods.logit_adjustment import LC, SLA
from compshift.methods.mixup import Mixup
from compshift.methods.registry import METHODS, make_method
from compshift.methods.resampling import RWG, SUBG
from compshift.nn.networks import BackboneClassifier, fresh_backbone
from tests.methods.golden import COUNTS, GROUPS, LOGITS, ROW_LOSSES, SEEN, batch, loss_of, model, task

A, B, C, D = ROW_LOSSES
GROUP_MEANS = [(A + B) / 2, C, D]


EVERY = sorted(METHODS)


def test_erm_is_the_mean():
    assert loss_of(ERM())[0] == pytest.approx((A + B + C + D) / 4, abs=1e-6)


def test_groupdro_by_hand():
    eta = 0.5
    weights = np.array([math.exp(eta * mean) / 3 for mean in GROUP_MEANS])
    weights /= weights.sum()
    value, state = loss_of(GroupDRO(eta))
    assert value == pytest.approx(float(weights @ GROUP_MEANS), abs=1e-6)
    np.testing.assert_allclose(state["group_weight"], weights, atol=1e-6)
    again, second = loss_of(GroupDRO(eta), state=state)
    weights *= np.exp(eta * np.array(GROUP_MEANS))
    weights /= weights.sum()
    assert again == pytest.approx(float(weights @ GROUP_MEANS), abs=1e-6)
    np.testing.assert_allclose(second["group_weight"], weights, atol=1e-6)


def test_groupdro_gives_no_weight_to_unseen_groups():
    """Unseen groups have no weight; the weight of a group absent from the batch changes by normalisation only."""
    _, state = loss_of(GroupDRO(0.5), logits=LOGITS[:2], groups=GROUPS[:2])
    assert state["group_weight"].shape == (3,)
    assert state["group_weight"].sum().item() == pytest.approx(1, abs=1e-6)
    assert state["group_weight"][1].item() == pytest.approx(state["group_weight"][2].item(), abs=1e-7)
    grown = math.exp(0.5 * (A + B) / 2)
    assert state["group_weight"][0].item() == pytest.approx(grown / (grown + 2), abs=1e-6)


def test_groupdro_over_all_groups_by_hand():
    """The fourth group is unseen: its loss is 0, so it keeps weight and shrinks the loss."""
    eta = 0.5
    means = [*GROUP_MEANS, 0.0]
    weights = np.exp(eta * np.array(means))
    weights /= weights.sum()
    value, state = loss_of(GroupDRO(eta, groups="all"))
    assert value == pytest.approx(float(weights @ means), abs=1e-6)
    np.testing.assert_allclose(state["group_weight"], weights, atol=1e-6)


def test_lc_by_hand():
    """Attribute 0 has p(y, a) = .6 and 0; attribute 1 has .3 and .1."""
    epsilon = 1e-3
    low, high = math.log(0.6 + epsilon), math.log(epsilon)
    first = [math.log1p(math.exp(other + high - own - low)) for own, other in ((2.0, 0.0), (0.0, 0.0))]
    three, one = math.log(0.3 + epsilon), math.log(0.1 + epsilon)
    last = [math.log1p(math.exp(1.0 + one - three)), math.log1p(math.exp(1.0 + three - (-1.0 + one)))]
    assert loss_of(LC(epsilon))[0] == pytest.approx(np.mean(first + last), abs=1e-6)


def test_sla_by_hand():
    """Counts with one added: 7 and 1 for attribute 0, 4 and 2 for attribute 1."""
    tau = 0.5
    low, high = tau * math.log(7 / 8), tau * math.log(1 / 8)
    first = [math.log1p(math.exp(other + high - own - low)) for own, other in ((2.0, 0.0), (0.0, 0.0))]
    three, one = tau * math.log(4 / 6), tau * math.log(2 / 6)
    last = [math.log1p(math.exp(1.0 + one - three)), math.log1p(math.exp(1.0 + three - (-1.0 + one)))]
    assert loss_of(SLA(tau))[0] == pytest.approx(np.mean(first + last), abs=1e-6)


@pytest.mark.parametrize("method", [LC(1e-4, "batch"), SLA(0.5, 0.0, 1e-4, "batch")])
def test_frequencies_of_the_batch_by_hand(method):
    """The batch has (y, a) = (0, 0) twice, (0, 1) once and (1, 1) once, unlike the training counts 6, 3 and 1."""
    joint = {(0, 0): 2 / 4, (1, 0): 0.0, (0, 1): 1 / 4, (1, 1): 1 / 4}
    attribute = {0: 2 / 4, 1: 2 / 4}
    expected = []
    for logits, group in zip(LOGITS, GROUPS, strict=True):
        y, a = SEEN[group]
        if method.name == "lc":
            offset = [math.log(joint[c, a] + 1e-4) for c in (0, 1)]
        else:
            offset = [0.5 * math.log(joint[c, a] / attribute[a] + 1e-4) for c in (0, 1)]
        shifted = [logit + shift for logit, shift in zip(logits, offset, strict=True)]
        expected.append(math.log(math.exp(shifted[0]) + math.exp(shifted[1])) - shifted[y])
    assert loss_of(method)[0] == pytest.approx(np.mean(expected), abs=1e-6)


@given(st.lists(st.floats(-5, 5), min_size=8, max_size=8), st.lists(st.integers(1, 50), min_size=4, max_size=4))
def test_lc_and_sla_without_smoothing_are_the_same_method(logits, counts):
    """log p(a) cancels in the softmax, so without smoothing LC equals SLA with τ = 1."""
    all_groups = task(counts, np.array([[0, 0], [0, 1], [1, 0], [1, 1]]))
    rows = np.array(logits).reshape(4, 2).tolist()
    lc, _ = loss_of(LC(epsilon=0.0), rows, [0, 1, 2, 3], the_task=all_groups)
    sla, _ = loss_of(SLA(smoothing=0.0), rows, [0, 1, 2, 3], the_task=all_groups)
    assert lc == pytest.approx(sla, abs=1e-5)


def test_logits_are_not_adjusted_at_test_time():
    for method in (LC(), SLA()):
        (predict,) = method.predictors(model(method)).values()
        logits = torch.tensor(LOGITS)
        np.testing.assert_allclose(predict(logits).detach(), logits.log_softmax(dim=1), atol=1e-6)


def slope(own, other):
    """Derivative of −log softmax at scale 1: ⟨softmax, z⟩ − z_own."""
    p = 1 / (1 + math.exp(other - own))
    return p * own + (1 - p) * other - own


def test_irm_by_hand():
    """Environment 0 has rows 0 and 1, environment 1 rows 2 and 3; each half has one row."""
    penalties = [slope(2, 0) * slope(0, 0), slope(0, 1) * slope(-1, 1)]
    for step, weight in ((0, 1.0), (9, 1.0), (10, 7.0)):
        expected = np.mean([(A + B) / 2 + weight * penalties[0], (C + D) / 2 + weight * penalties[1]])
        assert loss_of(IRM(penalty=7.0, anneal=10), step=step)[0] == pytest.approx(expected, abs=1e-5)
    assert [IRM(7.0, 10).resets_optimiser(step) for step in (9, 10, 11)] == [False, True, False]


def test_irm_penalty_is_the_derivative():
    """The closed form against automatic differentiation, on environments of several rows."""
    rng = np.random.default_rng(0)
    logits, groups = rng.normal(size=(9, 2)), [0, 0, 0, 0, 1, 2, 1, 2, 2]
    with_penalty, _ = loss_of(IRM(penalty=3.0, anneal=1), logits.tolist(), groups, step=1)
    without, _ = loss_of(IRM(penalty=0.0, anneal=1), logits.tolist(), groups, step=1)
    expected = []
    for rows in ([0, 1, 2, 3], [4, 5, 6, 7, 8]):
        gradients = []
        for half in (rows[0::2], rows[1::2]):
            scale = torch.ones((), requires_grad=True)
            z, y = torch.tensor(logits[half]), torch.tensor([int(SEEN[groups[row], 0]) for row in half])
            (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scale * z, y), scale)
            gradients.append(gradient.item())
        expected.append(3.0 * gradients[0] * gradients[1])
    assert with_penalty - without == pytest.approx(np.mean(expected), abs=1e-5)


def test_vrex_by_hand():
    mean, variance = np.mean(GROUP_MEANS), np.var(GROUP_MEANS)
    for step, weight in ((0, 1.0), (10, 7.0)):
        assert loss_of(VREx(7.0, 10), step=step)[0] == pytest.approx(mean + weight * variance, abs=1e-5)


def test_vrex_with_the_sample_variance_by_hand():
    value, _ = loss_of(VREx(7.0, 10, variance="sample"), step=10)
    assert value == pytest.approx(np.mean(GROUP_MEANS) + 7.0 * np.var(GROUP_MEANS, ddof=1), abs=1e-5)
    lone, _ = loss_of(VREx(7.0, 1, variance="sample"), LOGITS[:2], GROUPS[:2], step=1)
    assert lone == pytest.approx((A + B) / 2, abs=1e-6)  # one group has no variance


def test_the_optimiser_is_not_reset_if_asked():
    assert not any(kind(7.0, 10, "no").resets_optimiser(step) for kind in (IRM, VREx) for step in (9, 10, 11))


def test_energies_start_at_zero_or_at_random():
    assert not any(parameter.any() for parameter in CRM().head(2, task()).layers.parameters())
    assert all(parameter.all() for parameter in CRM(init="random").head(2, task()).layers.parameters())


def test_runs_from_before_have_the_same_identity():
    """Hyper-parameters that were added later are left out while they have their default."""
    assert LC().identity() == {"epsilon": 1e-8}
    assert SLA().identity() == {"tau": 1.0, "smoothing": 1.0}
    assert VREx().identity() == IRM().identity() == {"penalty": 100.0, "anneal": 500}
    assert (GroupDRO().identity(), CRM().identity()) == ({"eta": 0.01}, {"prior": "uniform", "hidden": 0})
    assert LC(frequencies="batch").identity() == {"epsilon": 1e-8, "frequencies": "batch"}


def test_penalties_of_weight_zero_leave_the_mean_risk():
    assert loss_of(VREx(0.0, 1), step=1)[0] == pytest.approx(np.mean(GROUP_MEANS), abs=1e-6)
    assert loss_of(IRM(0.0, 1), step=1)[0] == pytest.approx(np.mean([(A + B) / 2, (C + D) / 2]), abs=1e-6)


def test_the_penalty_changes_the_loss():
    small, large = (loss_of(VREx(penalty, 5), step=5)[0] for penalty in (0.1, 1e5))
    assert large > 1000 * small
    assert loss_of(VREx(0.1, 5), step=4)[0] == loss_of(VREx(1e5, 5), step=4)[0]


def test_mixup_by_hand():
    method = Mixup(alpha=5.0)
    rng = np.random.default_rng(1)
    share, order = rng.beta(5.0, 5.0), rng.permutation(4)
    assert 0.2 < share < 0.8
    assert order[3] != 3  # the only row of class 1 is mixed with another row
    logits, classes = np.array(LOGITS), SEEN[GROUPS, 0]
    mixed = share * logits + (1 - share) * logits[order]

    def cross_entropy(z, y):
        return np.log(np.exp(z).sum()) - z[y]

    expected = np.mean(
        [
            share * cross_entropy(z, y) + (1 - share) * cross_entropy(z, classes[other])
            for z, y, other in zip(mixed, classes, order, strict=True)
        ]
    )
    loss, _ = method.loss(model(method), batch(LOGITS, GROUPS, seed=1), {}, 0)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_crm_by_hand():
    """With zero energies the loss is the entropy of the group frequencies; then one bias and one energy by hand."""
    method, network = CRM(), model(CRM())
    frequency = COUNTS / COUNTS.sum()
    value, _ = method.loss(network, batch(LOGITS, GROUPS), {}, 0)
    assert value.item() == pytest.approx(-np.mean(np.log(frequency[GROUPS])), abs=1e-6)
    with torch.no_grad():
        network.head.learned_bias.copy_(torch.tensor([0.3, 0.0, 9.0, -0.2]))  # of (0,0), (0,1), (1,0), (1,1)
        network.head.layers[0].weight.copy_(torch.tensor([[0.5, 0.0], [0.0, -1.0]]))
    energy = np.array([[0.5 * x0, -x1] for x0, x1 in LOGITS])  # of y = 0 and y = 1
    logits = -energy[:, SEEN[:, 0]] + np.log(frequency) - [0.3, 0.0, -0.2]
    expected = np.mean([np.logaddexp.reduce(row) - row[own] for row, own in zip(logits, GROUPS, strict=True)])
    assert method.loss(network, batch(LOGITS, GROUPS), {}, 0)[0].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_one_row_and_one_group_give_finite_losses_and_gradients(name):
    method = make_method(name)
    for logits, groups in (([[1.0, -1.0]], [2]), ([[1.0, -1.0], [0.5, 3.0]], [0, 0]), (LOGITS, GROUPS)):
        network = model(method)
        for step in (0, 10_000):
            loss, state = method.loss(network, batch(logits, groups), method.state(task()), step)
            loss.backward()
            assert math.isfinite(loss.item())
            assert all(torch.isfinite(tensor).all() for tensor in state.values())
            for parameter in network.parameters():
                assert parameter.grad is None or torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("mixup", "irm")])
def test_shuffling_the_batch_changes_nothing_unless_rows_are_paired(name):
    method, order = make_method(name), [2, 0, 3, 1]
    shuffled = loss_of(method, [LOGITS[row] for row in order], [GROUPS[row] for row in order], step=600)
    assert shuffled[0] == pytest.approx(loss_of(method, step=600)[0], abs=1e-5)


def test_sampling_of_groups():
    counts = np.array([60.0, 3.0, 10.0])
    np.testing.assert_allclose(RWG().sampling(counts).weight, 1 / counts)
    assert SUBG().sampling(counts).limit == 3
    assert ERM().sampling(counts).weight is None


@pytest.mark.parametrize("seed", [0, 1])
def test_dfr_refits_the_last_layer_by_a_balanced_ridge_regression(seed):
    rng = np.random.default_rng(seed)
    group = np.repeat([0, 1, 2], [60, 30, 10])
    X = rng.normal(size=(100, 2)) * [1, 30] + 5 * SEEN[group]

    def batches():
        yield {"features": torch.tensor(X)}, torch.tensor(group), torch.ones(100)

    method = DFR(alpha=0.3)
    fitted = model(method).double()
    method.finish(fitted, TrainingRows(batches, task(np.bincount(group)), ALONE, 0))
    found, X = fitted.head, X.astype(np.float32).astype(float)
    weight = 1 / np.bincount(group)[group] / 3
    logits = X @ found.weight.detach().numpy().T + found.bias.detach().numpy()
    error = weight * (1 / (1 + np.exp(logits[:, 0] - logits[:, 1])) - SEEN[group][:, 0])
    assert error.sum() == pytest.approx(0, abs=1e-4)
    difference = (found.weight[1] - found.weight[0]).detach().numpy()
    variance = weight @ (X - weight @ X) ** 2
    gradient = error @ X + 0.3 * difference * variance
    np.testing.assert_allclose(gradient / np.sqrt(variance), 0, atol=1e-3)
    np.testing.assert_allclose(found.weight.sum(dim=0).detach(), 0, atol=1e-12)


def test_crm_resolved_chooses_alpha_by_the_weights_of_rows():
    rng, groups = np.random.default_rng(0), np.array(list(np.ndindex(2, 3)))
    group = np.repeat(np.arange(6), 20)
    noisy = np.arange(120) % 2 == 0
    X = rng.normal(size=(120, 6)) + np.pad(groups[group], ((0, 0), (0, 4)))
    X[noisy] = 3 * rng.normal(size=(60, 6))
    the_task = task(np.full(6, 20.0), groups, GroupSpace.from_cardinalities([2, 3]))

    def alpha(weight):
        rows = TrainingRows(
            lambda: [({"features": torch.tensor(X)}, torch.tensor(group), torch.tensor(weight))], the_task, ALONE, 0
        )
        method = make_method("crm-resolved")
        fitted = BackboneClassifier(fresh_backbone("linear", in_features=6), method.head(6, the_task)).double()
        with torch.no_grad():
            return method.finish(fitted, rows)["alpha"]

    assert alpha(np.where(noisy, 0.02, 1.98)) > 3 * alpha(np.ones(120))


def test_a_step_number_is_drawn_in_proportion_to_the_length_of_the_run():
    anneal = IRM.ranges["anneal"]
    assert (anneal.steps, anneal.middle, anneal.middle_for(10_000)) == (10_000, 100, 100)
    assert (anneal.middle_for(1000), anneal.middle_for(50_000), anneal.middle_for(10)) == (10, 500, 1)
    draws = [anneal.draw(np.random.default_rng(seed), 20_000) for seed in range(20)]
    assert draws == [max(1, int(2 * 10 ** np.random.default_rng(seed).uniform(0, 4))) for seed in range(20)]


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_several_attributes_are_combined_into_one(seed):
    """Baselines use the attribute combinations in the training data; CRM uses each attribute."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities([2, 2, 3])
    seen = np.array([[0, 0, 1], [0, 1, 2], [1, 0, 1], [1, 1, 0]])
    the_task = task(rng.integers(1, 9, size=4), seen, space)
    assert the_task.attribute_of.tolist() == [0, 2, 0, 1]
    assert the_task.n_attributes == 3
    table = the_task.class_by_attribute()
    assert table.shape == (2, 3)
    assert table[0].tolist() == [the_task.weight[0], 0, the_task.weight[1]]
    assert CRM().head(2, the_task)(torch.zeros(1, 2)).shape == (1, 7)


def test_a_task_needs_rows_of_every_class():
    with pytest.raises(InputError, match="y 1 has no training rows"):
        task([1.0], np.array([[0, 0]]))
    with pytest.raises(InputError, match="z1 has only one value"):
        task([1.0], np.array([[0, 0]]), GroupSpace.from_cardinalities([1, 2]))
