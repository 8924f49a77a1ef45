"""CelebA with five attributes: blond hair × gender × eyeglasses × hat × earrings."""

from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark
from compshift.data.celeba_files import DOWNLOAD, packagings
from compshift.data.geometry import CROP_AND_RESIZE

SPACE = GroupSpace(
    ("hair", "gender", "eyeglasses", "hat", "earrings"),
    (
        ("not blond", "blond"),
        ("female", "male"),
        ("no eyeglasses", "eyeglasses"),
        ("no hat", "hat"),
        ("no earrings", "earrings"),
    ),
)

BENCHMARK = Benchmark(
    name="celeba5",
    title="hair × gender × eyeglasses × hat × earrings",
    kind="images",
    groups="2⁵",
    packagings=packagings(SPACE, ("Blond_Hair", "Male", "Eyeglasses", "Wearing_Hat", "Wearing_Earrings")),
    download=DOWNLOAD,
    totals={"train": 162770, "val": 19867, "test": 19962},
    geometry=CROP_AND_RESIZE,
)
