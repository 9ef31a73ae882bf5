"""Parts of a dataset's page that other pages share: view, history, checks, comparison, logic."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from headgate.errors import EvaluatorDied, MissingExtra, NeedsSpark, StatementStopped
from headgate.files.tree import Change, ChangeKind, FilesDifference
from headgate.model.ids import TransactionId
from headgate.model.jobspecs import JobSpec, PublishedJobSpec, jobspec_from_json
from headgate.model.names import DatasetName
from headgate.model.nouns import Transaction
from headgate.model.object_store import size_text
from headgate.model.rules import rules_note
from headgate.server.web import markup
from headgate.server.web.page import Visit, publish_hint, split_page
from headgate.store.diff import Sides, compare_sides, load_sides
from headgate.store.overview import ShownDataset
from headgate.tables.diff import Basis, ChangedRow, DiffOptions, SchemaChanges, TableDifference
from headgate.tables.metadata import Row
from headgate.tables.schemas import type_text


def address_of(shown: ShownDataset, **query: str | int | None) -> str:
    """Return the address of a dataset in the context that is shown."""
    return markup.dataset_at(shown.dataset.name, branch=shown.context, **query)


_PAGE_ROWS = 25


def history(visit: Visit, shown: ShownDataset) -> Markup:
    """Return transactions, newest first, each with a link that compares it with its parent."""
    if shown.branch is None:
        return markup.empty("A chain or a moment has no history of its own.", "Choose a branch.")
    aborted = visit.param("all") == "1"
    found = visit.store.overview.history(
        shown.branch, before=visit.param("before"), aborted=aborted, limit=_PAGE_ROWS + 1
    )
    if not found:
        return markup.empty("No transaction yet.", "What is written here is listed, newest first.")
    page, steps = split_page(
        visit,
        markup.dataset_at(shown.dataset.name),
        found,
        _PAGE_ROWS,
        lambda last: last.renamed_from or last.parent,
        name="before",
    )
    rows = [_line(visit, shown, transaction) for transaction in page]
    headings = (
        "Transaction",
        "Type",
        "State",
        "When",
        "By",
        "Why",
        "Checks",
        markup.unseen("Comparison"),
    )
    switch = markup.link(
        "Leave out aborted ones" if aborted else "Show aborted ones too",
        address_of(shown, tab="history", all=None if aborted else "1"),
    )
    drawn = markup.table(headings, rows, label="Transactions")
    return markup.card("History", drawn, steps, beside=markup.beside(switch))


def _line(visit: Visit, shown: ShownDataset, t: Transaction) -> tuple[markup.Child, ...]:
    compare = None
    if t.parent is not None and t.version is not None and not t.condemned:
        where = {"branch": shown.context, "from_": t.parent, "to": t.id}
        compare = markup.link("Compare", markup.dataset_at(t.dataset, tab="compare", **where))
    return (
        code_of(t.id),
        markup.badge(t.type.value, "kind"),
        markup.badge(t.state.value),
        markup.moment(t.closed_at or t.opened_at, visit.now),
        t.actor,
        why(t),
        checks_badge(t.provenance.get("checks") or ()),
        markup.badge("expired", "quiet") if t.condemned else compare,
    )


def code_of(id: TransactionId | str) -> Markup:
    return markup.tag("code", markup.short(id), title=id)


def why(t: Transaction) -> markup.Child:
    """Return the origin of a transaction, from its provenance."""
    facts = t.provenance
    parts: list[markup.Child] = []
    if adopted := facts.get("adopted_from"):
        parts.append(["adopted from ", markup.tag("strong", str(adopted.get("branch")))])
    if "build" in facts:
        parts.append(
            markup.link(str(facts.get("job", "build")), markup.build_at(str(facts["build"])))
        )
    if "commit" in facts:
        clean = "" if facts.get("clean", True) else " (with uncommitted changes)"
        parts.append(["commit ", markup.code(str(facts["commit"])[:10]), clean])
    if note := rules_note(facts):
        parts.append(markup.badge(note, "warn"))
    if t.unit is not None:
        parts.append("with others, in one unit")
    if t.renamed_from is not None:
        parts.append("renamed; earlier ones are under the earlier name")
    origin = "dropped here" if t.version is None else "a write of its own"
    return markup.separated(parts) or origin


def checks_badge(results: Sequence[Mapping[str, Any]]) -> Markup | str:
    if not results:
        return ""
    failed = [result for result in results if not result["passed"]]
    if not failed:
        return markup.badge(f"{len(results)} passed", "good")
    worst = "bad" if any(result["on_error"] != "WARN" for result in failed) else "warn"
    return markup.badge(f"{len(failed)} of {len(results)} failed", worst)


def checks(visit: Visit, shown: ShownDataset) -> Markup:
    """Return the check results that were recorded with the version shown."""
    results = shown.view.provenance.get("checks") if shown.view else None
    if not results:
        hint = "Checks are declared with a transform's inputs and outputs, and run by builds."
        return markup.empty("Nothing was checked when this version was made.", hint)
    beside = markup.beside(markup.count(len(results), "check"))
    return markup.card("Checks", check_table(results), beside=beside)


def check_table(results: list[Mapping[str, Any]], of: str = "") -> Markup:
    rows = [
        (
            result["name"],
            markup.badge("passed") if result["passed"] else markup.badge("failed", _tone(result)),
            markup.tag("span", result["dataset"], " ", markup.badge(result["stage"], "kind")),
            result["expectation"],
            markup.join([result["reason"], _samples(result)]),
        )
        for result in results
    ]
    return markup.table(("Check", "Result", "On", "Expected", "Found"), rows, label=f"Checks{of}")


def _tone(result: Mapping[str, Any]) -> str:
    return "warn" if result["on_error"] == "WARN" else "bad"


def _samples(result: Mapping[str, Any]) -> markup.Child:
    samples = result.get("samples") or ()
    if not samples:
        return None
    columns = list(samples[0])
    rows = [[markup.cell(sample.get(column)) for column in columns] for sample in samples]
    return markup.table(columns, rows, label=f"Samples of {result['name']}")


_SAMPLES = 10
_SIGN = markup.unseen("Kind of change")


def comparison(visit: Visit, shown: ShownDataset) -> Markup:
    """Return the form that selects two sides, and the difference between them."""
    before = visit.param("from", (shown.branch.parent if shown.branch else None) or "")
    after = visit.param("to", shown.context)
    key = visit.param("key")
    chooser = markup.form(
        address_of(shown),
        markup.hidden("branch", shown.context),
        markup.hidden("tab", "compare"),
        markup.field("from", "From", before, hint="a branch or a transaction"),
        markup.field("to", "To", after, hint="a branch or a transaction"),
        markup.field("key", "Key", key, hint="the table's own"),
        label="What to compare",
        button="Compare",
    )
    if not before:
        hint = "Name a branch, a transaction, a chain a>b or a moment master@12 on each side."
        return markup.card("Compare", chooser, markup.empty("Choose what to compare with.", hint))
    sides = load_sides(visit.store, shown.dataset.name, before, after)
    columns = tuple(name.strip() for name in key.split(",") if name.strip())
    return markup.join(
        [markup.card("Compare", chooser, _moved(sides)), difference(visit, sides, columns)]
    )


def difference(visit: Visit, sides: Sides, key: Sequence[str] = ()) -> Markup:
    """Compare two sides; return the changes of schema, the counts and samples of rows."""
    how = DiffOptions(options=visit.store.settings.environ, key=key, samples=_SAMPLES)
    try:
        found = compare_sides(visit.store, sides, how)
    except (MissingExtra, NeedsSpark, StatementStopped, EvaluatorDied) as reason:
        return markup.empty("These rows cannot be compared here.", visit.explain(reason))
    return difference_body(found)


def difference_body(found: TableDifference | FilesDifference, of: str = "") -> Markup:
    """Return a difference of tables or of files; `of` makes the labels distinct on a page."""
    if isinstance(found, FilesDifference):
        return _files(found, of)
    if found.is_identical:
        return markup.empty("Both sides show the same.")
    return markup.join([_schema(found.schema, of), _rows(found, of)])


def _moved(sides: Sides) -> Markup:
    return markup.tag("p", _side(sides.before), " → ", _side(sides.after), class_="moved")


def _side(transaction: Transaction | None) -> markup.Child:
    if transaction is None:
        return "nothing"
    return markup.tag(
        "span", code_of(transaction.id), f" on {transaction.branch}, by {transaction.actor}"
    )


def schema_lines(changes: SchemaChanges) -> list[tuple[str, str, str]]:
    """Return sign, column and description of each change; pure."""
    lines = [("+", f.path, f"added, {type_text(f.type)}") for f in changes.added]
    lines += [("-", f.path, f"removed, was {type_text(f.type)}") for f in changes.removed]
    lines += [("~", old.path, f"is now called {new.path}") for old, new in changes.renamed]
    lines += [
        ("~", new.path, f"{type_text(old.type)} → {type_text(new.type)}")
        for old, new in changes.retyped
    ]
    lines += [
        ("~", new.path, "is now required" if new.required else "may now be null")
        for _, new in changes.required
    ]
    return lines


def _schema(changes: SchemaChanges, of: str) -> Markup | None:
    lines = schema_lines(changes)
    if not lines:
        return None
    rows = [(sign_of(sign), markup.code(column), change) for sign, column, change in lines]
    return markup.card(
        "Schema", markup.table((_SIGN, "Column", "Change"), rows, label=f"Schema changes{of}")
    )


def sign_of(sign: str) -> Markup:
    tone, word = {"+": ("good", "added"), "-": ("bad", "removed"), "~": ("warn", "changed")}[sign]
    return markup.tag("span", sign, class_=f"sign {tone}", title=word, aria_label=word, role="img")


def counts_line(found: TableDifference | FilesDifference) -> Markup:
    """Return the numbers of added, removed and changed rows or files, as badges."""
    if isinstance(found, FilesDifference):
        added, removed, changed = (found.counts[kind] for kind in ChangeKind)
    elif found.rows is None:
        return markup.badge("rows not compared", "quiet")
    else:
        added, removed, changed = found.rows.added, found.rows.removed, found.rows.changed
    parts = [("+", added, "good"), ("−", removed, "bad"), ("~", changed, "warn")]
    shown = [markup.badge(f"{sign}{number:,}", tone) for sign, number, tone in parts if number]
    return markup.chips(shown or markup.badge("same rows", "quiet"))


def _rows(found: TableDifference, of: str) -> Markup:
    rows = found.rows
    before = "?" if found.before_count is None else f"{found.before_count:,}"
    after = "?" if found.after_count is None else f"{found.after_count:,}"
    noun = "queries" if found.basis is Basis.QUERIES else "rows"
    beside = markup.beside(f"{before} → {after} {noun}  ", counts_line(found))
    if rows is None:
        return markup.card(
            noun.capitalize(), markup.empty("Only metadata was compared."), beside=beside
        )
    key = f"{noun.capitalize()} are identified by {', '.join(found.key)}." if found.key else None
    note = key or "The table has no key, so a changed row is one removed and one added."
    return markup.card(
        noun.capitalize(),
        markup.tag("p", note, class_="hint"),
        _sample("+", "Added", rows.added_rows, of),
        _sample("-", "Removed", rows.removed_rows, of),
        _changed(rows.changed_rows, of),
        beside=beside,
    )


def _sample(sign: str, title: str, rows: Sequence[Row], of: str) -> Markup | None:
    if not rows:
        return None
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[sign_of(sign), *(markup.cell(row.get(name)) for name in columns)] for row in rows]
    drawn = markup.table([_SIGN, *columns], lines, label=f"{title} rows{of}")
    return markup.join([markup.tag("h3", title), drawn])


def _changed(rows: Sequence[ChangedRow], of: str) -> Markup | None:
    if not rows:
        return None
    keys = list(rows[0].key)
    lines = [
        [sign_of("~"), *(markup.cell(row.key.get(name)) for name in keys), _columns(row)]
        for row in rows
    ]
    drawn = markup.table([_SIGN, *keys, "Changes"], lines, label=f"Changed rows{of}")
    return markup.join([markup.tag("h3", "Changed"), drawn])


def _columns(row: ChangedRow) -> Markup:
    changes = [
        markup.tag(
            "span",
            markup.tag("b", name),
            " ",
            markup.tag("del", markup.cell(row.before.get(name))),
            " ",
            markup.tag("ins", markup.cell(row.after.get(name))),
            class_="change",
        )
        for name in dict.fromkeys((*row.before, *row.after))
    ]
    return markup.join(changes)


def _files(found: FilesDifference, of: str) -> Markup:
    if not any(found.counts.values()):
        return markup.empty("Both sides show the same.")
    signs = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-", ChangeKind.CHANGED: "~"}
    lines = [
        (sign_of(signs[kind]), change.path, _sizes(change))
        for kind, changes in found.samples.items()
        for change in changes
    ]
    numbers = f"{found.before_count:,} → {found.after_count:,} files  "
    beside = markup.beside(numbers, counts_line(found))
    return markup.card(
        "Files", markup.table((_SIGN, "Path", "Size"), lines, label=f"Files{of}"), beside=beside
    )


def _sizes(change: Change) -> str:
    sides = [size_text(entry.size) if entry else None for entry in (change.before, change.after)]
    return " → ".join(side for side in sides if side)


def logic(visit: Visit, shown: ShownDataset) -> Markup:
    """Return the JobSpec of each branch name that has one, this branch's first."""
    found = load_logic(visit, shown.dataset.name, shown.context)
    if not found:
        return markup.empty("No transform makes this dataset.", publish_hint())
    return markup.join([logic_card(visit, published) for published in found])


def load_logic(visit: Visit, name: DatasetName, branch: str) -> list[PublishedJobSpec]:
    found = visit.store.overview.jobspecs(str(name))
    return sorted(found, key=lambda p: (p.branch != branch, p.branch))


def logic_card(visit: Visit, published: PublishedJobSpec) -> Markup:
    """Return the JobSpec that a branch name has for a dataset, or a note that it was removed."""
    at = markup.moment(published.published_at, visit.now)
    beside = markup.beside(at, f" by {published.actor}")
    title = ["JobSpec on ", published.branch]
    if published.removed:
        note = "Removed here: builds on this branch no longer fall back to another branch's."
        return markup.card(title, markup.tag("p", note), beside=beside)
    spec = jobspec_from_json(published.body["jobspec"])
    return markup.card(
        title, markup.facts(jobspec_facts(spec, clean=published.clean)), beside=beside
    )


def jobspec_facts(spec: JobSpec, *, clean: bool) -> list[tuple[str, markup.Child]]:
    """Return the facts of a JobSpec that the page shows."""
    declared = spec.declaration
    commit: markup.Child = [
        markup.code(spec.source.commit[:12]),
        None if clean else markup.badge("dirty", "warn"),
    ]
    pairs: list[tuple[str, markup.Child]] = [
        ("Transform", markup.code(spec.title)),
        ("Defined in", markup.code(f"{declared.file}:{declared.line}")),
        ("Repository", spec.source.repository),
        ("Commit", commit),
        ("Logic", markup.code(spec.logic_hash[:12])),
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


def _names(names: Iterable[str]) -> markup.Child:
    shown = [markup.link(name, markup.dataset_at(name), class_="chip") for name in names]
    return markup.chips(shown) if shown else "none"
