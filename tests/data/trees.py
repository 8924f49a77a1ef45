"""Write tiny folders in the layouts of the published data sets."""

import csv
import json
import pickle
import sys
import types
from pathlib import Path

import numpy as np

IDENTITIES = ["male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white"]


def image(path: Path, colour=(200, 30, 90), size=(40, 30)):
    """Write a JPEG of one colour; without Pillow, an empty file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        from PIL import Image
    except ModuleNotFoundError:
        path.touch()
        return
    Image.new("RGB", size, colour).save(path, quality=95)


def table(path: Path, rows, header=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        if header is not None:
            writer.writerow(header)
        writer.writerows(rows)


def colour_of(row):
    """Return a colour that differs between adjacent rows."""
    return (20 * row % 256, 255 - 20 * row % 256, 100)


# (file, y, split, place): every group occurs in every split, with different counts
BIRDS = [
    (f"{100 + y:03d}.Species/Bird_{y}{a}{s}{k}.jpg", y, s, a)
    for s in (0, 1, 2)
    for y in (0, 1)
    for a in (0, 1)
    for k in range(1 + y + (s == 0) * (1 - a))
]


def waterbirds(root: Path, packaging: str):
    folder = {
        "authors": "waterbirds/waterbird_complete95_forest2water2",
        "wilds": "waterbirds_v1.0",
        "group_dro": "cub/data/waterbird_complete95_forest2water2",
        "subpopbench": "waterbirds/waterbird_complete95_forest2water2",
    }[packaging]
    for row, (name, *_) in enumerate(BIRDS):
        image(root / folder / name, colour_of(row))
    if packaging == "subpopbench":
        rows = [(row, name, s, y, a) for row, (name, y, s, a) in enumerate(BIRDS)]
        table(root / "waterbirds/metadata_waterbirds.csv", rows, ["id", "filename", "split", "y", "a"])
    else:
        rows = [(row, name, y, s, a, f"/f/forest/{row}.jpg") for row, (name, y, s, a) in enumerate(BIRDS)]
        header = ["img_id", "img_filename", "y", "split", "place", "place_filename"]
        table(root / folder / "metadata.csv", rows, header)


CELEBA_NAMES = [f"Other_{i}" for i in range(35)]
CELEBA_NAMES[5:5] = ["Blond_Hair"]
CELEBA_NAMES[10:10] = ["Male", "Eyeglasses"]
CELEBA_NAMES[30:30] = ["Wearing_Hat", "Wearing_Earrings"]
FACES = 24


def face(row):
    """Return the five attributes of a face and its split."""
    return {
        "Blond_Hair": row % 2,
        "Male": row // 2 % 2,
        "Eyeglasses": row // 4 % 2,
        "Wearing_Hat": int(row % 5 == 0),
        "Wearing_Earrings": int(row % 7 == 0),
    }, row % 3


def celeba(root: Path, packaging: str, size=(178, 218)):
    folder = root / {"txt": "celeba", "csv": "celebA/data", "wilds": "celebA_v1.0", "subpopbench": "celeba"}[packaging]
    images = folder / "img_align_celeba" / ("img_align_celeba" if packaging == "csv" else "")
    files = [f"{row + 1:06d}.jpg" for row in range(FACES)]
    for row, name in enumerate(files):
        image(images / name, colour_of(row), size)
    signs = [[str(2 * face(row)[0].get(name, row % 2) - 1) for name in CELEBA_NAMES] for row in range(FACES)]
    splits = [face(row)[1] for row in range(FACES)]
    if packaging == "txt":
        lines = [str(FACES), " ".join(CELEBA_NAMES) + " "]
        lines += [
            f"{name} " + " ".join(value.rjust(2) for value in row) for name, row in zip(files, signs, strict=True)
        ]
        (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
        pairs = zip(files, splits, strict=True)
        (folder / "list_eval_partition.txt").write_text("".join(f"{name} {split}\n" for name, split in pairs))
    elif packaging == "subpopbench":
        rows = [
            (row + 1, name, splits[row], face(row)[0]["Blond_Hair"], face(row)[0]["Male"])
            for row, name in enumerate(files)
        ]
        table(folder / "metadata_celeba.csv", rows, ["id", "filename", "split", "y", "a"])
    else:
        rows = [(name, *row) for name, row in zip(files, signs, strict=True)]
        table(folder / "list_attr_celeba.csv", rows, ["image_id", *CELEBA_NAMES])
        # in a different order than the attribute table
        rows = list(zip(files, splits, strict=True))[::-1]
        table(folder / "list_eval_partition.csv", rows, ["image_id", "partition"])


METASHIFT = "MetaShift-Cat-Dog-indoor-outdoor"
PETS = {
    "train/cat/cat(indoor)": 12,
    "train/dog/dog(outdoor)": 11,
    "test/cat/cat(outdoor)": 5,
    "test/dog/dog(indoor)": 8,
}


def metashift(root: Path, packaging: str):
    base = root / "metashift" / METASHIFT
    rows = []
    for folder, count in PETS.items():
        for number in range(count):
            row = len(rows)
            image(base / folder / f"{number:03d}.jpg", colour_of(row))
            y, a = int("/cat/" in folder), int("(indoor)" in folder)  # SubpopBench's codes
            rows.append((f"/home/somebody/data/metashift/{METASHIFT}/{folder}/{number:03d}.jpg", y, a, row % 3))
    if packaging == "table":
        table(root / "metashift/metadata_metashift.csv", rows, ["filename", "y", "a", "split"])


CONTEXTS = ["autumn", "dim", "grass", "outdoor", "rock", "water"]
OBJECTS = {"airplane": 0, "bear": 1, "train": 2}
NICO = {("airplane", "autumn"): 90, ("bear", "dim"): 80, ("train", "rock"): 75, ("bear", "water"): 10}


def nicopp(root: Path, packaging: str):
    base = root / "nicopp"
    folder = {
        "plain": "public_dg_0416/train",
        "track_1": "track_1/public_dg_0416/train",
        "nested": "track_1/track_1/train",
        "table": "public_dg_0416/train",
    }[packaging]
    rows = []
    for (thing, context), count in NICO.items():
        for number in range(count):
            image(base / folder / context / thing / f"{context}_{number:04d}.jpg", size=(8, 8))
            name = f"/scratch/nicopp/public_dg_0416/train/{context}/{thing}/{context}_{number:04d}.jpg"
            rows.append((name, OBJECTS[thing], CONTEXTS.index(context), len(rows) % 3))
    (base / "dg_label_id_mapping.json").write_text(json.dumps(OBJECTS))
    if packaging == "table":
        table(base / "metadata.csv", rows, ["filename", "y", "a", "split"])


# (premise, hypothesis, label); examples with the label "-" are left out
PAIRS = [
    ("It rains.", "It's NOT dry, no!", "entailment"),
    ("He ate.", "Nobody ate.", "contradiction"),
    ("She left.", "Somebody knows.", "-"),
    ("They sing.", "They never-ending sing.", "neutral"),
    ("A dog ran.", "Nothing ran.", "contradiction"),
    ("A cat sat.", "A nothingness sat.", "neutral"),
]
NEGATED = [1, 1, None, 0, 1, 0]
LABELS = {"contradiction": 0, "entailment": 1, "neutral": 2}


def multinli_table(root: Path):
    """Write the table of published splits, whose line numbers skip the pairs that are left out."""
    rows = [
        (number, LABELS[label], NEGATED[number], number % 3)
        for number, (_, _, label) in enumerate(PAIRS)
        if label != "-"
    ]
    table(root / "multinli/data/metadata_random.csv", rows, ["", "gold_label", "sentence2_has_negation", "split"])


def multinli_texts(root: Path, folder="multinli/data"):
    names = ["train", "dev_matched", "dev_mismatched"]
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, pairs in zip(names, (PAIRS[:3], PAIRS[3:5], PAIRS[5:]), strict=True):
        lines = [
            json.dumps({"sentence1": first, "sentence2": second, "gold_label": label, "pairID": str(number)})
            for number, (first, second, label) in enumerate(pairs)
        ]
        (root / folder / f"multinli_1.0_{name}.jsonl").write_text("\n".join(lines) + "\n")


def glue_class():
    """Return a class that pickles as ``utils_glue.InputFeatures``, a module that does not exist when it is read."""
    return type("InputFeatures", (), {"__module__": "utils_glue"})


def pickled(objects, dump):
    """Call ``dump`` while the module of the objects exists."""
    module = types.ModuleType("utils_glue")
    module.InputFeatures = type(objects[0])
    sys.modules["utils_glue"] = module
    try:
        return dump(objects)
    finally:
        del sys.modules["utils_glue"]


def glue_features(labels, length=128, wrap=list):
    cls = glue_class()
    features = []
    for number, label in enumerate(labels):
        feature = cls()
        feature.input_ids = wrap([101, 1000 + number, 102] + [0] * (length - 3))
        feature.input_mask = wrap([1, 1, 1] + [0] * (length - 3))
        feature.segment_ids = wrap([0, 1, 1] + [0] * (length - 3))
        feature.label_id = label
        features.append(feature)
    return features


def multinli_caches(root: Path, write=None):
    """Write the three caches of the pairs with a label, as plain pickles or by ``write(objects, path)``."""
    folder = root / "multinli/glue_data/MNLI"
    folder.mkdir(parents=True)
    write = write or (lambda objects, path: path.write_bytes(pickle.dumps(objects, protocol=2)))
    kept = [LABELS[label] for _, _, label in PAIRS if label != "-"]
    names = [
        "cached_train_bert-base-uncased_128_mnli",
        "cached_dev_bert-base-uncased_128_mnli",
        "cached_dev_bert-base-uncased_128_mnli-mm",
    ]
    for name, labels in zip(names, (kept[:2], kept[2:4], kept[4:]), strict=True):
        objects = glue_features(labels)
        pickled(objects, lambda objects, path=folder / name: write(objects, path))


# (text, split, toxicity, scores of the identities)
COMMENTS = [
    ("NA", "train", 0.0, {"male": 0.9, "black": 0.5}),
    ('says "hi",\nthen leaves', "train", 0.8, {"female": 1.0}),
    ("nobody in particular", "train", 0.9, {}),
    ("null", "val", 0.5, {"white": 0.7, "muslim": 0.6, "male": 0.49}),
    ("a fourth", "test", 0.2, {"LGBTQ": 0.5}),
    ("a fifth", "test", 0.1, {"male": 0.6}),
]


def civilcomments(root: Path, packaging: str):
    folder = root / "civilcomments"
    if packaging == "authors":
        header = ["", "id", "comment_text", "split", "created_date", "toxicity", *IDENTITIES]
        rows = [
            (number, 5000 + number, text, split, "2017", toxicity, *(scores.get(name, "") for name in IDENTITIES))
            for number, (text, split, toxicity, scores) in enumerate(COMMENTS)
        ]
        table(folder / "all_data_with_identities.csv", rows, header)
        return
    rows, texts = [], []
    for text, split, toxicity, scores in COMMENTS:
        for a, name in enumerate(IDENTITIES):
            if scores.get(name, 0) >= 0.5:
                code = ["train", "val", "test"].index(split)
                rows.append((len(rows), len(rows), code, int(toxicity >= 0.5), a))
                texts.append((text,))
    table(folder / "metadata_civilcomments_fine.csv", rows, ["id", "filename", "split", "y", "a"])
    table(folder / "civilcomments_fine.csv", texts, ["comment_text"])


def counts(data):
    """Return the number of rows by split and group."""
    values = data.space.decode(data.codes).tolist()
    found = {}
    for split, group in zip(data.split.tolist(), values, strict=True):
        key = (split, *group)
        found[key] = found.get(key, 0) + 1
    return found


def pixel(path):
    """Return the colour of the centre pixel of an image."""
    from compshift.data.images import read_image

    pixels = np.asarray(read_image(path))
    return tuple(int(value) for value in pixels[pixels.shape[0] // 2, pixels.shape[1] // 2])


def nicopp_whole(root: Path):
    """Write a tiny NICO++ of 60 × 6 groups, one image of each in every split; train lacks 23 of the groups."""
    base, contexts = root / "nicopp", ("autumn", "dim", "grass", "outdoor", "rock", "water")
    things = {f"thing{number:02d}": number for number in range(60)}
    rows = []
    for thing, y in things.items():
        for a, context in enumerate(contexts):
            lacks = (y * 6 + a) % 15 == 7 and y < 57  # at most one group of a class
            for split in range(lacks, 3):
                name = f"{context}/{thing}/{split}.jpg"
                image(base / "public_dg_0416/train" / name, size=(8, 8))
                rows.append((name, y, a, split))
    (base / "dg_label_id_mapping.json").write_text(json.dumps(things))
    table(base / "metadata.csv", rows, ["filename", "y", "a", "split"])
