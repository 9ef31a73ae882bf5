"""Something with that name is already there."""

from __future__ import annotations

from headgate.errors.families import Exists


class DatasetExists(Exists):
    """There is a dataset of that name."""

    code = "dataset_exists"

    def __init__(self, *, dataset: str) -> None:
        super().__init__(f"dataset {dataset!r} exists already.", dataset=dataset)


class BranchExists(Exists):
    """The dataset has a branch of that name."""

    code = "branch_exists"

    def __init__(self, *, dataset: str, branch: str) -> None:
        super().__init__(
            f"dataset {dataset!r} has a branch {branch!r} already.", dataset=dataset, branch=branch
        )


class NamespaceExists(Exists):
    """There is a namespace of that name."""

    code = "namespace_exists"

    def __init__(self, *, namespace: str) -> None:
        super().__init__(f"namespace {namespace!r} exists already.", namespace=namespace)


class TableExists(Exists):
    """The context shows a table of that name."""

    code = "table_exists"

    def __init__(self, *, table: str, context: str) -> None:
        super().__init__(
            f"table {table!r} exists already in {context!r}.", table=table, context=context
        )
