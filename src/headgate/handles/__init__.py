"""Handles: what Python code holds in its hands for a dataset, a branch, a transaction."""

from __future__ import annotations

from headgate.handles.datasets import BranchHandle, DatasetHandle
from headgate.handles.files import ShownFiles, store_bytes, view_files
from headgate.handles.transactions import TransactionHandle, UnitHandle

__all__ = [
    "BranchHandle",
    "DatasetHandle",
    "ShownFiles",
    "TransactionHandle",
    "UnitHandle",
    "store_bytes",
    "view_files",
]
