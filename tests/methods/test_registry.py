"""Methods by name, and their hyper-parameters."""

import pytest

torch = pytest.importorskip("torch")

from compshift import InputError
from compshift.methods.dfr import DFR
from compshift.methods.group_dro import GroupDRO
from compshift.methods.invariance import IRM
from compshift.methods.registry import METHODS, make_method


def test_the_registry_makes_every_method():
    paper = ["erm", "groupdro", "lc", "sla", "irm", "vrex", "mixup", "crm"]
    assert list(METHODS) == [*paper, "rwg", "subg", "dfr", "crm-resolved"]
    for name, kind in METHODS.items():
        assert kind.name == name
        assert kind.summary
    assert make_method("groupdro", {"eta": "0.5"}) == GroupDRO(0.5)
    assert make_method("irm", {"anneal": 20, "penalty": 1}) == IRM(1.0, 20)
    with pytest.raises(InputError, match=r"method 'crmm' is not known.*did you mean 'crm'"):
        make_method("crmm")
    with pytest.raises(InputError, match="hyper-parameter of 'irm' 'lambda' is not known: use one of 'penalty'"):
        make_method("irm", {"lambda": 3})
    with pytest.raises(InputError, match="no hyper-parameters"):
        make_method("erm", {"eta": 3})
    with pytest.raises(InputError, match=r"anneal is '2\.5': pass an integer"):
        make_method("irm", {"anneal": "2.5"})
    with pytest.raises(InputError, match=r"alpha is 0\.0"):
        make_method("mixup", {"alpha": 0})
    for name, factor in (("sla", "tau"), ("sla", "smoothing"), ("dfr", "alpha")):
        with pytest.raises(InputError, match=rf"{factor} is 1e\+308: pass a finite number .*, up to 1e\+18"):
            make_method(name, {factor: 1e308})
    with pytest.raises(InputError, match="prior 'flat' is not known"):
        make_method("crm", {"prior": "flat"})
    with pytest.raises(InputError, match="only linear energies"):
        make_method("crm-resolved", {"hidden": 8})
    with pytest.raises(InputError, match="alpha is -1"):
        DFR(alpha=-1)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("groupdro", {"eta": "nan"}),
        ("lc", {"epsilon": -1}),
        ("sla", {"smoothing": -5}),
        ("sla", {"tau": "inf"}),
        ("crm-resolved", {"alpha": -1}),
        ("irm", {"penalty": -1}),
        ("vrex", {"anneal": 0}),
    ],
)
def test_bad_hyperparameters_raise_on_construction(name, values):
    (key,) = values
    with pytest.raises(InputError, match=f"{key} is"):
        make_method(name, values)
