"""``compshift export``: write a model as an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from compshift.cli.options import Json, Model, Prior


def export(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.", show_default=False)],
    prior: Prior = None,
    groups: Annotated[bool, typer.Option("--groups", metavar="", help="Add the probability of every group.")] = False,
    fixed_prior: Annotated[
        bool, typer.Option("--fixed-prior", metavar="", help="Leave out the input by which the prior can be changed.")
    ] = False,
    float64: Annotated[
        bool, typer.Option("--float64", metavar="", help="Use 64 bits for features and probabilities instead of 32.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a model as one ONNX file, to be run without compshift.

    For a folder of `compshift train`, the head is written: its input is the backbone's features.
    """
    from compshift.export.onnx import check_onnx_path, export_onnx

    check_onnx_path(output, model, prior)
    from compshift.cli.model_inputs import load_model

    loaded = load_model(model, prior)
    written = export_onnx(
        loaded.clf if loaded.network is None else loaded.network,
        output,
        group_probabilities=groups,
        fixed_prior=fixed_prior,
        dtype="float64" if float64 else "float32",
    )
    from compshift.report.terminal import print_onnx_file

    print_onnx_file(written, as_json=json)
