"""Priors over candidate groups, from names, arrays, mappings and Series."""

import numpy as np
import pandas as pd
import pytest

from compshift import GroupSpace, InputError
from compshift.core.candidates import Candidates, given_log_prior, log_probabilities, uniform_log_prior


def test_uniform_over_the_chosen():
    np.testing.assert_allclose(uniform_log_prior(np.array([True, False, True])), [np.log(0.5), -np.inf, np.log(0.5)])
    message = "prior='hull' cannot be used: none of the candidate groups is inside the hull; use another prior"
    with pytest.raises(InputError, match=message):
        uniform_log_prior(np.array([False, False]))


def test_zero_is_a_legal_probability():
    np.testing.assert_array_equal(log_probabilities([0.0, 1.0]), [-np.inf, 0.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [([0.5, 0.6], "sums to 1.1"), ([1.5, -0.5], r"negative entry \(-0.5\)"), ([np.nan, 1.0], "NaN")],
)
def test_bad_probabilities(values, message):
    with pytest.raises(InputError, match=message):
        log_probabilities(values)


SPACE = GroupSpace(("o", "s"), ((0, 1), (0, 1)))
GROUPS = SPACE.codes(np.arange(4))


def series(names):
    """Return a prior with probability 1 on the group (0, 1), with these names of the index levels."""
    return pd.Series([1.0], index=pd.MultiIndex.from_tuples([(0, 1)], names=names))


@pytest.mark.parametrize(
    ("names", "where"),
    [(["o", "s"], 1), (["s", "o"], 2), (None, 1), (["o", None], 1), ([None, "s"], 1)],
)
def test_levels_are_read_by_name_or_by_position(names, where):
    np.testing.assert_array_equal(np.exp(given_log_prior(series(names), SPACE, GROUPS)), np.eye(4)[where])


def test_names_of_levels_that_are_numbers():
    space = GroupSpace(("0", "1"), SPACE.values)
    np.testing.assert_array_equal(np.exp(given_log_prior(series([1, 0]), space, GROUPS)), np.eye(4)[2])


@pytest.mark.parametrize("names", [["o", "zzz"], ["O", "S"], ["s", None], [None, "o"], ["o", "o"], ["a", "b"]])
def test_levels_of_other_names_are_an_error(names):
    message = r"prior has index levels named .*, but the attributes are 'o', 's': rename the levels, or remove "
    with pytest.raises(InputError, match=message):
        given_log_prior(series(names), SPACE, GROUPS)


def test_a_group_that_is_listed_twice_is_an_error():
    space = GroupSpace.from_table([("a", 0), ("b", 1)], names=["y", "z"])
    groups = space.codes(np.arange(4))
    index = pd.MultiIndex.from_tuples([("a", 0), ("a", 0), ("b", 1)])
    with pytest.raises(InputError, match=r"prior lists \(a, 0\) more than once: pass one probability per group"):
        given_log_prior(pd.Series([0.5, 0.25, 0.25], index=index), space, groups)
    one = GroupSpace.from_table([("a",), ("b",)], names=["y"])
    with pytest.raises(InputError, match=r"prior lists \(a\) more than once|prior lists a more than once"):
        given_log_prior({"a": 0.3, ("a",): 0.3, "b": 0.4}, one, one.codes(np.arange(2)))


class TestClassPrior:
    """A prior over the classes alone: each class shares its probability among its candidates inside the hull."""

    space = GroupSpace(("bird", "place", "size"), (("duck", "owl"), ("lake", "wood", "moon"), ("s", "l")))
    seen = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]])  # the moon is outside the hull

    def candidates(self, support="all"):
        return Candidates.of(self.space, self.seen, np.ones(len(self.seen)), support)

    @pytest.mark.parametrize("given", [{"duck": 0.9, "owl": 0.1}, pd.Series([0.1, 0.9], index=["owl", "duck"])])
    def test_it_is_shared_within_the_class(self, given):
        found = self.candidates()
        probability = np.exp(found.log_prior(given))
        of_class = found.groups[:, 0]
        np.testing.assert_allclose(np.bincount(of_class, weights=probability), [0.9, 0.1])
        inside = found.inside_hull
        assert not probability[~inside].any()
        np.testing.assert_allclose(probability[inside & (of_class == 0)], 0.9 / 4)
        np.testing.assert_allclose(probability[inside & (of_class == 1)], 0.1 / 4)

    def test_equal_classes_with_equally_many_groups_are_the_hull_prior(self):
        found = self.candidates("hull")
        np.testing.assert_allclose(found.log_prior({"duck": 0.5, "owl": 0.5}), found.log_prior("hull"))

    def test_a_class_without_candidates_inside_the_hull_shares_among_all_of_its_candidates(self):
        found = self.candidates([[0, 0, 0], [1, 2, 0], [1, 2, 1]])
        np.testing.assert_allclose(np.exp(found.log_prior({"duck": 0.5, "owl": 0.5})), [0.5, 0.25, 0.25])

    def test_a_single_attribute_is_as_before(self):
        space = GroupSpace(("bird",), (("duck", "owl"),))
        found = Candidates.of(space, np.array([[0], [1]]), np.ones(2), "all")
        np.testing.assert_allclose(np.exp(found.log_prior({"duck": 1.0})), [1, 0])

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"duck": 1.0}, "prior has no entry for the class 'owl' of 'bird': list every class"),
            ({"duck": 0.5, "swan": 0.5}, "prior has the key 'swan', which is not a class of 'bird'"),
            ({"duck": 0.5, "owl": 0.6}, "prior sums to 1.1"),
            ({"duck": 0.5, ("owl", "lake", "s"): 0.5}, "prior mixes classes and groups"),
            ([0.5, 0.5], "for a prior over the classes alone, pass a mapping from classes to probabilities"),
        ],
    )
    def test_errors(self, given, message):
        with pytest.raises(InputError, match=message):
            self.candidates().log_prior(given)

    def test_a_class_that_cannot_be_predicted(self):
        with pytest.raises(InputError, match=r"prior gives 0\.5 to the class 'owl', but no candidate group has it"):
            self.candidates([[0, 0, 0]]).log_prior({"duck": 0.5, "owl": 0.5})
