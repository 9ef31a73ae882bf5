"""A dataset that transforms declare and nothing has made yet: it is in the lineage all the same."""

from __future__ import annotations

from headgate.model.names import DatasetName
from headgate.server.web import addresses
from headgate.server.web.logic import load_logic, logic_card
from headgate.server.web.markup import join
from headgate.server.web.pieces import badge, command, empty, heading
from headgate.server.web.visiting import Page, Section, Visit


def find_declared_page(visit: Visit, name: DatasetName) -> Page | None:
    """How it would be made, and by which command; None where no transform makes it either."""
    branch = visit.asked("branch", visit.primary).partition(">")[0]
    found = [spec for spec in load_logic(visit, name, branch) if not spec.removed]
    if not found:
        return None
    hint = join(["A build makes it:", command(f"headgate build {name} --upstream -b {branch}")])
    return Page(
        title=str(name),
        place=addresses.DATASETS,
        sections=(
            Section(key="head", body=heading(str(name), badge("not built yet", "warn"))),
            Section(key="build", body=empty("Nothing was ever published here.", hint)),
            Section(key="logic", body=join([logic_card(visit, spec) for spec in found])),
        ),
    )
