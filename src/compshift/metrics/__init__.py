"""Accuracy and other metrics of a classifier on each group, and pictures of them."""

from compshift.metrics.coverage_display import CoverageDisplay
from compshift.metrics.displays import GroupDisplay, ReliabilityDisplay
from compshift.metrics.group import GroupReport, group_balanced_accuracy, group_report, worst_group_accuracy
from compshift.metrics.group_metric import GroupMetric, group_metric

__all__ = [
    "CoverageDisplay",
    "GroupDisplay",
    "GroupMetric",
    "GroupReport",
    "ReliabilityDisplay",
    "group_balanced_accuracy",
    "group_metric",
    "group_report",
    "worst_group_accuracy",
]
