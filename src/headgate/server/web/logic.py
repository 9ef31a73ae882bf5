"""The published logic that makes a dataset, branch by branch."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.catalog.jobspecs import PublishedJobSpec, load_jobspecs
from headgate.model.jobspecs import JobSpec, jobspec_from_json
from headgate.model.names import DatasetName
from headgate.server.web import addresses
from headgate.server.web.markup import Child, Markup, join, tag
from headgate.server.web.pieces import (
    badge,
    card,
    code,
    command,
    empty,
    facts,
    link,
    moment,
)
from headgate.server.web.showing import Shown
from headgate.server.web.visiting import Visit


def logic(visit: Visit, shown: Shown) -> Markup:
    """The JobSpec on each branch name that has one, this branch's first."""
    found = load_logic(visit, shown.dataset.name, shown.context)
    if not found:
        hint = join(
            ["Publish transforms from their repository:", command("headgate jobspecs publish")]
        )
        return empty("No transform makes this dataset.", hint)
    return join([logic_card(visit, published) for published in found])


def load_logic(visit: Visit, name: DatasetName, branch: str) -> list[PublishedJobSpec]:
    found = visit.store.database.read(lambda c: load_jobspecs(c, dataset=str(name)))
    return sorted(found, key=lambda p: (p.branch != branch, p.branch))


def logic_card(visit: Visit, published: PublishedJobSpec) -> Markup:
    """What one branch name declares of a dataset: how it is made, or that it no longer is."""
    beside = tag(
        "span", moment(published.published_at, visit.now), f" by {published.actor}", class_="beside"
    )
    title = ["JobSpec on ", published.branch]
    if published.removed:
        told = "Removed here: builds on this branch no longer fall back to another branch's."
        return card(title, tag("p", told), beside=beside)
    spec = jobspec_from_json(published.body["jobspec"])
    return card(title, facts(jobspec_facts(spec, clean=published.clean)), beside=beside)


def jobspec_facts(spec: JobSpec, *, clean: bool) -> list[tuple[str, Child]]:
    """What people look for in a JobSpec."""
    declared = spec.declaration
    commit: Child = [code(spec.source.commit[:12]), None if clean else badge("dirty", "warn")]
    pairs: list[tuple[str, Child]] = [
        ("Transform", code(spec.title)),
        ("Defined in", code(f"{declared.file}:{declared.line}")),
        ("Repository", spec.source.repository),
        ("Commit", commit),
        ("Logic", code(spec.logic_hash[:12])),
        ("Inputs", _names(str(given.dataset) for given in spec.inputs)),
        ("Outputs", _names(str(output.dataset) for output in spec.outputs)),
    ]
    checks = [check.name for given in spec.inputs for check in given.checks]
    checks += [check.name for output in spec.outputs for check in output.checks]
    if checks:
        pairs.append(("Checks", ", ".join(checks)))
    if declared.incremental is not None:
        pairs.append(("Incremental", f"version {declared.incremental.semantic_version}"))
    return pairs


def _names(names: Iterable[str]) -> Child:
    shown = [link(str(name), addresses.dataset_at(str(name)), class_="chip") for name in names]
    return tag("span", shown, class_="chips") if shown else "none"
