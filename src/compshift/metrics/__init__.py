"""Accuracy of a classifier on each group."""

from compshift.metrics.group import GroupReport, group_balanced_accuracy, group_report, worst_group_accuracy

__all__ = ["GroupReport", "group_balanced_accuracy", "group_report", "worst_group_accuracy"]
