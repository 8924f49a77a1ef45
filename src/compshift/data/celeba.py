"""CelebA (Liu et al. 2015): blond hair × gender."""

from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark
from compshift.data.celeba_files import DOWNLOAD, packagings, subpopbench
from compshift.data.geometry import CROP_AND_RESIZE

SPACE = GroupSpace(("hair", "gender"), (("not blond", "blond"), ("female", "male")))

BENCHMARK = Benchmark(
    name="celeba",
    title="hair × gender, photographs of faces",
    kind="images",
    groups="2 × 2",
    packagings=(*packagings(SPACE, ("Blond_Hair", "Male")), subpopbench(SPACE)),
    download=DOWNLOAD,
    published={
        "train": (71629, 66874, 22880, 1387),
        "val": (8535, 8276, 2874, 182),
        "test": (9767, 7535, 2480, 180),
    },
    totals={"train": 162770, "val": 19867, "test": 19962},
    geometry=CROP_AND_RESIZE,
)
