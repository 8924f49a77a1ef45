"""The exported graph against the classifier itself, against plain loops, and in places where sums underflow."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import compshift  # noqa: E402
import tests.references as reference  # noqa: E402
from compshift import (  # noqa: E402
    AdditiveGaussian,
    AffineExtrapolation,
    CRMClassifier,
    CRMClassifierCV,
    GroupSpace,
    InputError,
    LogitAdjustedClassifier,
    export_onnx,
)
from compshift.core.candidates import Candidates  # noqa: E402
from compshift.core.hull import AffineHull  # noqa: E402
from compshift.estimators.onnx_model import onnx_model, output_names  # noqa: E402
from compshift.estimators.onnx_source import Layer, OnnxSource, classifier_source  # noqa: E402
from tests.estimators.test_crm import make_data  # noqa: E402

CLOSE = 1e-5


def run(model, X, dtype=np.float32, **further):
    """Outputs by name, of a file or a model in memory."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = {"X": np.asarray(X, dtype=dtype), **{name: np.asarray(value, dtype) for name, value in further.items()}}
    return dict(zip(names, session.run(None, feeds), strict=True))


def exported(clf, tmp_path, X, **options):
    """Outputs of the file for features, and those features in the precision of the file."""
    export_onnx(clf, tmp_path / "model.onnx", **options)
    dtype = np.dtype(options.get("dtype", "float32"))
    return run(tmp_path / "model.onnx", X, dtype), np.asarray(X, dtype).astype(np.float64)


def fit(cardinalities=(2, 3), n_targets=1, clf=None, shift=0.0, missing=(0,), **data):
    X, codes = make_data(cardinalities, missing=missing, **data)
    y, further = codes[:, :n_targets], codes[:, n_targets:]
    clf = CRMClassifier() if clf is None else clf
    X = X + shift
    return clf.fit(X, y[:, 0] if n_targets == 1 else y, attributes=further if further.size else None), X


def slow_source(rng, cardinalities, n_targets=1, spread=3.0, keep=1.0):
    """A source with energies that are the features themselves, and scores at random; some groups are no candidates."""
    space = GroupSpace.from_cardinalities(cardinalities)
    kept = np.sort(rng.choice(space.n_groups, size=math.ceil(keep * space.n_groups), replace=False))
    groups = space.codes(kept)
    prior = rng.dirichlet(np.ones(len(groups)))
    with np.errstate(divide="ignore"):
        log_prior = np.log(np.where(rng.random(len(groups)) < 0.2, 0.0, prior))
    identity = Layer(np.eye(space.width), np.zeros(space.width))
    candidates = Candidates(AffineHull(space, groups[:1]), np.ones(1), groups)
    log_weight = spread * rng.normal(size=len(groups))
    return OnnxSource(candidates, n_targets, np.zeros(space.width), ((identity,),), log_prior, log_weight)


def slow_probabilities(source, energies, log_prior, target):
    """By the equation, one sample and one value at a time."""
    groups, sizes = source.candidates.groups, source.space.cardinalities
    kept = log_prior > -np.inf
    log_score = (log_prior + source.log_weight)[kept]
    rows = []
    for row in energies:
        values = reference.marginal_log_posterior(row, sizes, groups[kept], log_score, target)
        rows.append([math.exp(value) for value in values])
    return np.array(rows)


def operators(graph):
    return {node.op_type for node in graph.node}


class TestEquations:
    """Graphs of every form against the loop."""

    @pytest.mark.parametrize(
        ("cardinalities", "n_targets", "keep", "table"),
        [
            ((4,), 1, 1.0, False),
            ((3, 2), 2, 1.0, False),
            ((3, 2), 1, 0.7, False),
            ((12, 7), 1, 1.0, True),
            ((12, 7), 2, 0.8, True),
            ((20, 1, 5), 2, 0.9, True),
            ((2,) * 7, 7, 1.0, True),
            ((3, 4, 3, 4), 3, 0.6, True),
            ((70, 2), 1, 0.02, False),
        ],
    )
    def test_equal_the_loop(self, cardinalities, n_targets, keep, table):
        rng = np.random.default_rng(sum(cardinalities) + n_targets)
        source = slow_source(rng, cardinalities, n_targets, keep=keep)
        energies = 3 * rng.normal(size=(5, source.space.width))
        model = onnx_model(source)
        onnx.checker.check_model(model, full_check=True)
        assert ("If" in operators(model.graph)) == table
        found = run(model, energies)
        other = rng.uniform(0.1, 5, size=len(source.log_prior))  # need not sum to 1
        changed = run(model, energies, prior=5 * other)
        for target, (label, name) in enumerate(output_names(source.space.names[:n_targets])):
            expected = slow_probabilities(source, energies, source.log_prior, target)
            assert found[name].dtype == np.float32
            np.testing.assert_allclose(found[name], expected, atol=CLOSE)
            assert found[label].tolist() == found[name].argmax(axis=1).tolist()
            expected = slow_probabilities(source, energies, np.log(other), target)
            np.testing.assert_allclose(changed[name], expected, atol=CLOSE)
        joint = run(onnx_model(source, group_probabilities=True), energies)["group_probabilities"]
        for row, shares in zip(energies, joint, strict=True):
            kept = source.log_prior > -np.inf
            log_score = (source.log_prior + source.log_weight)[kept]
            groups = source.candidates.groups[kept]
            expected = reference.group_log_posterior(row, source.space.cardinalities, groups, log_score)
            np.testing.assert_allclose(shares[kept], np.exp(expected), atol=CLOSE)
            assert not shares[~kept].any()

    @pytest.mark.parametrize("cardinalities", [(3, 2), (12, 7)])
    def test_large_energies(self, cardinalities):
        """Quarters are exact in 32 bits, so that nothing but the sums is tested."""
        rng = np.random.default_rng(3)
        source = slow_source(rng, cardinalities, len(cardinalities))
        energies = rng.integers(-2000, 2000, size=(40, source.space.width)) / 4
        found = run(onnx_model(source), energies)
        for target, name in enumerate(name for _, name in output_names(source.space.names)):
            expected = slow_probabilities(source, energies, source.log_prior, target)
            np.testing.assert_allclose(found[name], expected, atol=CLOSE)

    def test_sums_that_underflow_are_taken_again(self):
        """Each row's best column is one that is no group: without the second sum there is nothing left of it."""
        space = GroupSpace.from_cardinalities([12, 7])
        rng = np.random.default_rng(0)
        source = slow_source(rng, (12, 7))
        kept = source.candidates.groups[:, 1] != source.candidates.groups[:, 0] % 7
        groups = source.candidates.groups[kept]
        source = replace(
            source,
            candidates=Candidates(AffineHull(space, groups[:1]), np.ones(1), groups),
            log_prior=np.full(len(groups), -math.log(len(groups))),
            log_weight=source.log_weight[kept],
        )
        assert source.candidates.table.shape == (12, 7)
        energies = np.zeros((12, space.width))
        for row in range(12):  # value `row` and column `row % 7` have the lowest energies by far, but not together
            energies[row, row] = -300
            energies[row, 12 + row % 7] = -250
        energies += rng.integers(0, 3, size=energies.shape)
        found = run(onnx_model(source), energies)["probabilities"]
        expected = slow_probabilities(source, energies, source.log_prior, 0)
        assert expected[np.arange(12), np.arange(12)].min() > 0.99
        np.testing.assert_allclose(found, expected, atol=CLOSE)
        with np.errstate(divide="ignore"):
            log_prior = np.log(np.where(groups[:, 0] == 3, 0.0, 1.0))  # a row of the table with nothing in it
        found = run(onnx_model(source), energies, prior=np.exp(log_prior))["probabilities"]
        np.testing.assert_allclose(found, slow_probabilities(source, energies, log_prior, 0), atol=CLOSE)

    def test_a_value_without_prior_has_no_probability(self):
        rng = np.random.default_rng(0)
        source = slow_source(rng, (12, 7))
        prior = np.where(source.candidates.groups[:, 0] == 3, 0.0, 1.0)
        energies = rng.normal(size=(4, source.space.width))
        found = run(onnx_model(source), energies, prior=prior)["probabilities"]
        assert not found[:, 3].any()
        np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)

    @pytest.mark.parametrize("scale", [3e38, 1e-37])
    def test_a_prior_of_any_size(self, scale):
        source = slow_source(np.random.default_rng(0), (12, 7))
        source = replace(source, log_weight=np.zeros(84))
        found = run(onnx_model(source), np.zeros((2, 19)), prior=np.full(84, scale))["probabilities"]
        np.testing.assert_allclose(found, 1 / 12, atol=1e-6)

    def test_64_bits(self):
        rng = np.random.default_rng(1)
        for cardinalities in ((3, 2), (12, 7)):
            source = slow_source(rng, cardinalities)
            energies = 3 * rng.normal(size=(5, source.space.width))
            found = run(onnx_model(source, dtype="float64"), energies, np.float64)["probabilities"]
            assert found.dtype == np.float64
            np.testing.assert_allclose(found, slow_probabilities(source, energies, source.log_prior, 0), atol=1e-13)

    def test_no_column_per_group(self):
        """2¹⁶ groups: no array of the graph, and nothing that it computes for a sample, is as long as that."""
        source = slow_source(np.random.default_rng(0), (2,) * 16)
        model = onnx.shape_inference.infer_shapes(onnx_model(source))
        shapes = [
            [axis.dim_value or axis.dim_param for axis in value.type.tensor_type.shape.dim]
            for value in model.graph.value_info
        ]
        per_sample = [shape for shape in shapes if len(shape) == 2 and isinstance(shape[0], str)]
        assert len(per_sample) > 5
        assert max(shape[1] for shape in per_sample) == 256
        energies = np.random.default_rng(1).normal(size=(3, 32))
        found = run(model, energies)["probabilities"]
        kept = source.log_prior > -np.inf
        np.testing.assert_allclose(
            found[0], slow_probabilities(source, energies[:1], source.log_prior, 0)[0], atol=CLOSE
        )
        assert kept.sum() > 50_000


class TestClassifier:
    """Whatever a classifier may have been set to is in the file."""

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"bias": "learned"},
            {"bias": "cumulant"},
            {"bias": "shrunk"},
            {"unseen_offset": 1.5},
            {"prior": "train"},
            {"prior": "hull", "support": "hull"},
            {"anchor": "gaussian"},
            {"cross_fit": True, "alpha": 1e-4},
            {"support": [[0, 0], [1, 2], [0, 1]]},
        ],
        ids=str,
    )
    def test_options(self, options, tmp_path):
        clf, X = fit(clf=CRMClassifier(**options))
        found, X = exported(clf, tmp_path, X, group_probabilities=True)
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X), atol=CLOSE)
        np.testing.assert_allclose(found["group_probabilities"], np.exp(clf.group_log_proba(X)), atol=CLOSE)
        assert (found["label"] == clf.predict(X)).mean() > 0.99  # all but ties
        if options and "support" not in options:
            plain, _ = fit()
            assert not np.allclose(found["probabilities"], plain.predict_proba(X), atol=10 * CLOSE)

    def test_what_was_changed_after_the_fit(self, tmp_path):
        clf, X = fit()
        clf.set_params(bias="learned", unseen_offset=-2.0)
        clf.set_prior({(0, 0): 0.5, (1, 1): 0.25, (1, 2): 0.25})
        found, X = exported(clf, tmp_path, X)
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X), atol=CLOSE)
        before = clf.log_prior_
        found, _ = exported(clf, tmp_path, X, prior="train")
        assert clf.log_prior_ is before
        np.testing.assert_allclose(found["probabilities"], clf.set_prior("train").predict_proba(X), atol=CLOSE)

    def test_saved_and_chosen_by_held_out_groups(self, tmp_path):
        X, codes = make_data((3, 3), n=600)
        clf = CRMClassifierCV([1e-2, 1.0], prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.unseen_offset_ != 0
        clf.save(tmp_path / "model.safetensors")
        for model in (clf, compshift.load(tmp_path / "model.safetensors")):
            found, X32 = exported(model, tmp_path, X)
            np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X32), atol=CLOSE)

    def test_another_prior_in_use(self, tmp_path):
        """The order of the groups is in the metadata."""
        clf, X = fit((2, 40), n=2000)
        export_onnx(clf, tmp_path / "model.onnx")
        about = json.loads({p.key: p.value for p in onnx.load(tmp_path / "model.onnx").metadata_props}["compshift"])
        assert about["groups"] == "all"
        assert about["names"] == list(clf.space_.names)
        assert [tuple(values) for values in about["values"]] == list(clf.space_.values)
        assert about["compshift_version"] == compshift.__version__
        share = np.random.default_rng(0).dirichlet(np.ones(80)).reshape(2, 40)
        found = run(tmp_path / "model.onnx", X, prior=share.ravel())["probabilities"]
        X32 = X.astype(np.float32).astype(np.float64)
        np.testing.assert_allclose(found, clf.set_prior(share).predict_proba(X32), atol=CLOSE)

    def test_a_fixed_prior_is_no_input(self, tmp_path):
        clf, X = fit()
        written = export_onnx(clf, tmp_path / "a.onnx", fixed_prior=True)
        assert list(written.inputs) == ["X"]
        assert export_onnx(clf, tmp_path / "b.onnx").inputs == {"X": (None, 4), "prior": (6,)}
        fixed, free = (run(tmp_path / name, X)["probabilities"] for name in ("a.onnx", "b.onnx"))
        np.testing.assert_allclose(fixed, free, atol=1e-7)

    def test_listed_groups_are_in_the_metadata(self, tmp_path):
        clf, _ = fit(clf=CRMClassifier(support=[[1, 2], [0, 0]]))
        export_onnx(clf, tmp_path / "model.onnx")
        about = json.loads(onnx.load(tmp_path / "model.onnx").metadata_props[0].value)
        assert about["groups"] == clf.groups_.tolist() == [[0, 0], [1, 2]]

    @pytest.mark.parametrize("n_rows", [0, 1, 7])
    @pytest.mark.parametrize("cardinalities", [(2, 3), (9, 9)])
    def test_any_number_of_rows(self, cardinalities, n_rows, tmp_path):
        clf, X = fit(cardinalities)
        found, X32 = exported(clf, tmp_path, X[:n_rows])
        assert found["probabilities"].shape == (n_rows, cardinalities[0])
        assert found["label"].shape == (n_rows,)
        if n_rows:
            np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X32), atol=CLOSE)

    @pytest.mark.parametrize(
        ("values", "dtype"),
        [
            (["land bird", "Küstenvogel"], object),
            ([10, 20], np.int64),
            ([False, True], np.bool_),
            ([1.0, 2.0], np.float64),
        ],
    )
    def test_labels_are_the_values(self, values, dtype, tmp_path):
        X, codes = make_data()
        clf = CRMClassifier().fit(X, np.array(values)[codes[:, 0]], attributes=codes[:, 1])
        found, X = exported(clf, tmp_path, X)
        assert found["label"].dtype == dtype
        assert (found["label"] == clf.predict(X)).mean() > 0.99
        assert set(found["label"].tolist()) == set(values)

    def test_several_targets(self, tmp_path):
        X, codes = make_data((2, 3, 2), n=600)
        y = pd.DataFrame({"the bird": codes[:, 0], "place": np.array(["land", "sea", "sky"])[codes[:, 1]]})
        frame = pd.DataFrame(X, columns=list("abcd"))
        clf = CRMClassifier().fit(frame, y, attributes=codes[:, 2])
        found, X = exported(clf, tmp_path, X)
        assert list(found) == ["label_the_bird", "probabilities_the_bird", "label_place", "probabilities_place"]
        first, second = clf.predict_proba(pd.DataFrame(X, columns=list("abcd")))
        np.testing.assert_allclose(found["probabilities_the_bird"], first, atol=CLOSE)
        np.testing.assert_allclose(found["probabilities_place"], second, atol=CLOSE)
        assert found["label_place"].tolist()[:3] == [["land", "sea", "sky"][code] for code in second[:3].argmax(axis=1)]
        about = json.loads(onnx.load(tmp_path / "model.onnx").metadata_props[0].value)
        assert about["targets"]["the bird"]["label"] == "label_the_bird"
        assert about["feature_names"] == ["a", "b", "c", "d"]

    def test_names_that_become_one(self):
        assert output_names(("a b", "a_b")) == [
            ("label_a_b_1", "probabilities_a_b_1"),
            ("label_a_b_2", "probabilities_a_b_2"),
        ]

    @pytest.mark.parametrize("shift", [1e3, 1e6])
    @pytest.mark.parametrize("cardinalities", [(2, 3), (9, 9)])
    def test_features_far_from_zero(self, cardinalities, shift, tmp_path):
        """For the features as 32 bits hold them, the file gives what the classifier gives, at any offset."""
        clf, X = fit(cardinalities, shift=shift, n=800)
        found, X32 = exported(clf, tmp_path, X)
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X32), atol=CLOSE)
        found, _ = exported(clf, tmp_path, X, dtype="float64")
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X), atol=1e-9)

    @pytest.mark.parametrize("cardinalities", [(2, 3), (9, 9)])
    def test_what_is_common_to_an_attribute_changes_nothing(self, cardinalities, tmp_path):
        clf, X = fit(cardinalities)
        common = 1e4 * np.random.default_rng(0).normal(size=X.shape[1])
        coef = clf.coef_ + np.where(np.arange(len(clf.coef_)) < cardinalities[0], 1, -2)[:, None] * common
        shifted = CRMClassifier.from_model(replace(clf._model, coef=coef))
        found, X = exported(shifted, tmp_path, X)
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X), atol=CLOSE)

    def test_one_file_and_the_same_each_time(self, tmp_path):
        clf, _ = fit()
        written = export_onnx(clf, tmp_path / "model.onnx")
        first = (tmp_path / "model.onnx").read_bytes()
        assert len(first) == written.size
        export_onnx(clf, str(tmp_path / "model.onnx"))
        assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
        assert (tmp_path / "model.onnx").read_bytes() == first


class TestRefused:
    """One sentence each, and no file."""

    @pytest.fixture(autouse=True)
    def nothing_written(self, tmp_path):
        yield
        assert not list(tmp_path.glob("**/*.onnx"))

    def test_not_fitted(self, tmp_path):
        with pytest.raises(NotFittedError, match="not fitted"):
            export_onnx(CRMClassifier(), tmp_path / "model.onnx")

    @pytest.mark.parametrize(
        "model",
        [
            LogitAdjustedClassifier(),
            AdditiveGaussian(),
            AffineExtrapolation(None),
            make_pipeline(StandardScaler(), CRMClassifier()),
            "model.safetensors",
        ],
        ids=lambda model: type(model).__name__,
    )
    def test_other_models(self, model, tmp_path):
        with pytest.raises(InputError, match=f"a {type(model).__name__} cannot be .*: pass a fitted CRMClassifier"):
            export_onnx(model, tmp_path / "model.onnx")

    def test_a_class(self, tmp_path):
        with pytest.raises(InputError, match="the class CRMClassifier cannot be"):
            export_onnx(CRMClassifier, tmp_path / "model.onnx")

    def test_paths(self, tmp_path):
        clf, _ = fit()
        with pytest.raises(InputError, match="there is no folder"):
            export_onnx(clf, tmp_path / "nowhere" / "model.onnx")
        with pytest.raises(InputError, match=r"does not end in '\.onnx'"):
            export_onnx(clf, tmp_path / "model.safetensors")

    def test_options(self, tmp_path):
        clf, _ = fit()
        with pytest.raises(InputError, match="dtype 'float16' is not known"):
            export_onnx(clf, tmp_path / "model.onnx", dtype="float16")
        with pytest.raises(InputError, match="prior 'even' is not known"):
            export_onnx(clf, tmp_path / "model.onnx", prior="even")

    def test_too_many_groups(self, monkeypatch, tmp_path):
        clf, _ = fit()
        monkeypatch.setattr("compshift.estimators.onnx_model.MAX_GROUP_COLUMNS", 5)
        with pytest.raises(InputError, match="6 groups, and group probabilities are given for 5 at most"):
            export_onnx(clf, tmp_path / "model.onnx", group_probabilities=True)

    def test_too_large_for_a_file(self, monkeypatch, tmp_path):
        clf, _ = fit()
        monkeypatch.setattr("compshift.estimators.onnx_model.MAX_BYTES", 100)
        with pytest.raises(InputError, match="GB, and an ONNX file holds 2"):
            export_onnx(clf, tmp_path / "model.onnx")

    def test_without_onnx(self, monkeypatch, tmp_path):
        clf, _ = fit()
        monkeypatch.setitem(sys.modules, "onnx", None)
        with pytest.raises(InputError, match=r'pip install "compshift\[onnx\]"'):
            export_onnx(clf, tmp_path / "model.onnx")


def trained_head(cardinalities, hidden, n=300, p=5):
    """A head whose biases are known, and the features that they rest on."""
    torch = pytest.importorskip("torch")
    from compshift.nn import AdditiveEnergyHead

    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities(cardinalities)
    codes = space.codes(rng.integers(1, space.n_groups, size=n))
    head = AdditiveEnergyHead(p, space, hidden)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.as_tensor(rng.normal(size=tuple(parameter.shape))))
    X = torch.as_tensor(rng.normal(size=(n, p)), dtype=torch.float32)
    head.set_train_groups(codes)
    head.extrapolate([X])
    return head, X


class TestHead:
    """The head in PyTorch against its file."""

    @pytest.mark.parametrize("hidden", [None, 8, [8, 6]])
    @pytest.mark.parametrize("cardinalities", [(2, 3), (9, 9)])
    def test_equals_the_head(self, cardinalities, hidden, tmp_path):
        head, X = trained_head(cardinalities, hidden)
        export_onnx(head, tmp_path / "model.onnx")
        found = run(tmp_path / "model.onnx", X.numpy())
        expected = head.double().marginal_log_prob(X, 0).exp().detach().numpy()
        np.testing.assert_allclose(found["probabilities"], expected, atol=CLOSE)
        head.float()
        for prior in ("hull", "train"):
            export_onnx(head, tmp_path / "model.onnx", prior=prior)
            found = run(tmp_path / "model.onnx", X.numpy())
            expected = head.marginal_log_prob(X, 0, prior).exp().detach().numpy()
            np.testing.assert_allclose(found["probabilities"], expected, atol=CLOSE)

    def test_what_is_common_to_an_attribute_changes_nothing(self, tmp_path):
        torch = pytest.importorskip("torch")
        head, X = trained_head((2, 3), 8)
        head.double()
        expected = head.marginal_log_prob(X, 0).exp().detach().numpy()
        with torch.no_grad():
            for layer in head.layers:
                layer[-1].weight += 4096 * torch.arange(8)
        head._extrapolated = None  # its biases are right up to a constant
        export_onnx(head, tmp_path / "model.onnx")
        found = run(tmp_path / "model.onnx", X.numpy())["probabilities"]
        np.testing.assert_allclose(found, expected, atol=CLOSE)

    def test_a_head_without_biases(self, tmp_path):
        pytest.importorskip("torch")
        from compshift.nn import AdditiveEnergyHead

        head = AdditiveEnergyHead(3, [2, 2])
        head.set_train_groups(np.array([[0, 1], [1, 0], [1, 1]]))
        with pytest.raises(InputError, match="call extrapolate with the training inputs first"):
            export_onnx(head, tmp_path / "model.onnx")

    @pytest.mark.parametrize("hidden", [0, 6])
    def test_a_trained_model(self, hidden, tmp_path):
        """The file takes what the backbone gives."""
        torch = pytest.importorskip("torch")
        from compshift.methods.crm import CRM
        from compshift.training import Settings, train
        from tests.training.test_loop import Wobbly, gaussians

        data = gaussians()
        settings = Settings(steps=20, batch_size=33, eval_every=10, learning_rate=0.05)
        model = train(data, CRM(hidden=hidden), Wobbly(dropout=0.0), settings, device="cpu").set_prior("train")
        export_onnx(model, tmp_path / "model.onnx")
        samples = data.samples.astype(np.float32)
        with torch.no_grad():
            features = model.model.backbone(torch.as_tensor(samples)).numpy()
        found = run(tmp_path / "model.onnx", features)
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(samples), atol=CLOSE)
        assert set(found["label"]) == {"land", "water"}

    def test_a_model_of_classes_alone(self, tmp_path):
        pytest.importorskip("torch")
        from compshift.training import Settings, train
        from tests.training.test_loop import Wobbly, gaussians

        model = train(gaussians(), "erm", Wobbly(), Settings(steps=2, eval_every=2), device="cpu")
        with pytest.raises(InputError, match="trained by 'erm', which predicts classes alone"):
            export_onnx(model, tmp_path / "model.onnx")


def test_the_source_of_a_classifier_leaves_it_as_it_is():
    clf, _ = fit()
    before = clf.log_prior_.copy()
    source = classifier_source(clf, "train")
    np.testing.assert_array_equal(clf.log_prior_, before)
    np.testing.assert_allclose(source.log_weight, -clf.bias_)
