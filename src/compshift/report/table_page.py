"""A page on a table alone: which combinations it has, lacks, and would need."""

from __future__ import annotations

from compshift.data.audit import Audit
from compshift.report.coverage_section import coverage_cards, coverage_lead, coverage_section
from compshift.report.made_with import made_section
from compshift.report.page import Page


def table_page(audit: Audit, name: str) -> Page:
    """Coverage, the grid to explore, and what to collect."""
    facts = [("table", name), ("attributes", ", ".join(audit.space.names))]
    sections = [coverage_section(audit), made_section(*facts)]
    return Page(name, "table", coverage_lead(audit), sections, coverage_cards(audit))
