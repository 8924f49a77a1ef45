"""Palmer penguins: species × sex × island, a table of measurements in which 8 of the 18 groups do not occur.

Measurements by Gorman, Williams and Fraser (2014), "Ecological sexual dimorphism and environmental variability within a
community of Antarctic penguins (genus Pygoscelis)", PLoS ONE 9(3): e90081, as packaged in palmerpenguins (Horst, Hill
and Gorman 2020), CC0. ``tables/penguins.csv`` contains all 344 rows, 333 of them complete.
"""

from __future__ import annotations

from importlib.resources import files

from compshift.core.columns import read_columns
from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark
from compshift.data.dataset import GroupedDataset
from compshift.data.splits import DEFAULT_SHARES, stratified_split

ATTRIBUTES = ("species", "sex", "island")
MEASUREMENTS = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")


def load_penguins(random_state: int = 0) -> GroupedDataset:
    """Load the rows without missing values, and split each group at random."""
    import pandas as pd

    with files("compshift.data").joinpath("tables/penguins.csv").open() as stream:
        table = pd.read_csv(stream).dropna()
    columns = read_columns(table[list(ATTRIBUTES)])
    space = GroupSpace._from_columns(columns)
    codes = space._encode_columns(columns)
    split = stratified_split(space, codes, DEFAULT_SHARES, random_state)
    return GroupedDataset(table[list(MEASUREMENTS)].to_numpy(dtype=float), space, codes, split)


BENCHMARK = Benchmark(
    name="penguins",
    title="species × sex × island, four measurements",
    kind="features",
    groups="3 × 2 × 3",
    make=load_penguins,
)
