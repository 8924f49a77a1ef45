"""A small embedder, and digests of shards by which folders of features are compared."""

import hashlib

from compshift import GroupSpace

SPACE = GroupSpace(("bird", "place"), (("waterbird", "landbird"), ("land", "water", "sky")))
N = 22


def embedder(home, model="resnet", **options):
    from compshift.features.embedder import Embedder
    from compshift.nn.backbones import load_backbone

    kind = "text" if model == "bert" else "images"
    return Embedder(load_backbone(str(home / model), kind), **{"batch_size": 4, "num_workers": 0, **options})


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("part-*.parquet"))}
