"""Accuracy and other metrics of a classifier on each group."""

from compshift.metrics.group import GroupReport, group_balanced_accuracy, group_report, worst_group_accuracy
from compshift.metrics.group_metric import GroupMetric, group_metric

__all__ = [
    "GroupMetric",
    "GroupReport",
    "group_balanced_accuracy",
    "group_metric",
    "group_report",
    "worst_group_accuracy",
]
