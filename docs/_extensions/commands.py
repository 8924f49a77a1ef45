"""Directive ``commands``: every command with its arguments and options, from the texts of ``--help``."""

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from compshift.cli.main import app as compshift


def every_command(command: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the full name, command and context of every command, descending into command groups."""
    for name, part in getattr(command, "commands", {}).items():
        inner = type(context)(part, info_name=name, parent=context)
        if hasattr(part, "commands"):
            yield from every_command(part, inner)
        else:
            yield inner.command_path, part, inner


class Commands(Directive):
    """One section per command."""

    def run(self) -> list[nodes.Node]:
        """Return the sections in the order of ``compshift --help``."""
        command = typer.main.get_command(compshift)
        context = command.context_class(command, info_name="compshift")
        return [self.section(name, part, inner) for name, part, inner in every_command(command, context)]

    def section(self, name: str, command: Any, context: Any) -> nodes.section:
        """Return a section with the usage, description, arguments and options of a command."""
        section = nodes.section(ids=[nodes.make_id(name)], names=[nodes.fully_normalize_name(name)])
        section += nodes.title(text=name)
        usage = command.get_usage(context).removeprefix("Usage: ")
        section += nodes.literal_block(usage, usage, language="text")
        for paragraph in command.help.split("\n\n"):
            section += nodes.paragraph(text=" ".join(paragraph.split()))
        entries = nodes.definition_list(classes=["options"])
        for parameter in command.params:
            record = parameter.get_help_record(context)
            if record is None or parameter.hidden:
                continue
            entry = nodes.definition_list_item()
            entry += nodes.term("", "", nodes.literal(text=record[0]))
            entry += nodes.definition("", nodes.paragraph(text=" ".join(record[1].split())))
            entries += entry
        section += entries
        return section


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
