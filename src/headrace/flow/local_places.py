"""Places of this machine by their whole path: what was said is relative to where the driver is now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.flow.graph import Graph, Node
from headrace.flow.sinks import ParquetSink


def whole_path(place: str) -> str:
    """A URL stays what it is."""
    return place if "://" in place else str(Path(place).absolute())


def with_whole_paths(graph: Graph) -> Graph:
    """Workers, and the driver in another folder, write to the same files."""
    # A source stays: its commits name files as it did.
    return replace(graph, nodes=tuple(map(_whole, graph.nodes)))


def _whole(node: Node) -> Node:
    if not isinstance(node.sink, ParquetSink):
        return node
    return replace(node, sink=replace(node.sink, folder=whole_path(node.sink.folder)))
