"""Handles: what Python code holds in its hands for a dataset, a branch, a transaction."""

from __future__ import annotations

from headgate.handles.datasets import BranchHandle, DatasetHandle
from headgate.handles.files import read_file, store_bytes, view_files
from headgate.handles.transactions import TransactionHandle, UnitHandle

__all__ = [
    "BranchHandle",
    "DatasetHandle",
    "TransactionHandle",
    "UnitHandle",
    "read_file",
    "store_bytes",
    "view_files",
]
