"""Two attributes as a graph: their values are the nodes, the seen groups the edges (paper, "A Closer Look")."""

from collections import deque

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import IntArray


def connected_values(groups: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Connected components of the value graph, each as the codes of its first and of its second attribute's values."""
    parent: dict[tuple[int, int], tuple[int, int]] = {}

    def root(node: tuple[int, int]) -> tuple[int, int]:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for left, right in groups.tolist():
        parent[root((0, left))] = root((1, right))
    members: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for side, value in sorted(parent):
        members.setdefault(root((side, value)), ([], []))[side].append(value)
    return [(np.array(left, dtype=np.int64), np.array(right, dtype=np.int64)) for left, right in members.values()]


def shortest_witness(groups: IntArray, code: IntArray) -> list[tuple[int, int]]:
    """Signs and positions of the groups along a shortest path from one value of ``code`` to the other.

    Taken in turn with + and −, the values inside the path cancel and the two of ``code`` remain.
    """
    neighbours: dict[tuple[int, int], list[tuple[tuple[int, int], int]]] = {}
    for position, (left, right) in enumerate(groups.tolist()):
        neighbours.setdefault((0, left), []).append(((1, right), position))
        neighbours.setdefault((1, right), []).append(((0, left), position))
    start, goal = (0, int(code[0])), (1, int(code[1]))
    reached: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {start: None}
    queue = deque([start])
    while queue and goal not in reached:
        node = queue.popleft()
        for other, position in neighbours.get(node, []):
            if other not in reached:
                reached[other] = (node, position)
                queue.append(other)
    if goal not in reached:
        raise InputError("the values are not connected: no path of seen groups joins them")
    path: list[int] = []
    step = reached[goal]
    while step is not None:
        node, position = step
        path.append(position)
        step = reached[node]
    path.reverse()
    return [(1 if number % 2 == 0 else -1, position) for number, position in enumerate(path)]
