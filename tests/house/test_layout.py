"""The layout of the package keeps its ratios; `pytest -s` prints the table.

Totals may grow with the product. The ratios may not: modules that are too small or hold several
concepts, names that explain nothing, deep chains of imports. Each rule finds a planted breach.
"""

from __future__ import annotations

import pytest

from tests.support import layout
from tests.support.source import Module, modules, parse

_MODULES_PER_THOUSAND_LINES = 3.8
_LONGEST_MODULE_LINES = 900
_IMPORT_SHARE = 0.09
_LONGEST_CHAIN = 16


def test_layout_of_the_package_keeps_its_ratios() -> None:
    found = layout.measure(modules())
    print(f"\n{found.table()}")  # noqa: T201  (for people: pytest -s)
    assert found.modules_per_thousand_lines <= _MODULES_PER_THOUSAND_LINES
    assert found.longest_module[1] <= _LONGEST_MODULE_LINES
    assert found.import_share <= _IMPORT_SHARE
    assert len(found.longest_chain) <= _LONGEST_CHAIN, " > ".join(found.longest_chain)


def test_layout_of_the_package_has_no_bad_name_and_no_sliver() -> None:
    assert layout.gerund_stems(modules()) == []
    assert layout.repeated_stems(modules()) == []
    assert layout.slivers(modules()) == []


def test_stems_listed_as_shared_are_shared() -> None:
    stems = [path.path.rpartition("/")[2].removesuffix(".py") for path in modules()]
    assert [stem for stem in layout.SHARED_STEMS if stems.count(stem) < 2] == []


_SHORT = "from __future__ import annotations\n\n\ndef one() -> int:\n    return 1\n"


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        (layout.gerund_stems, {"builds/keeping.py": _SHORT}),
        (layout.repeated_stems, {"builds/shape.py": _SHORT, "files/shape.py": _SHORT}),
        (layout.slivers, {"a/b.py": _SHORT, "a/c.py": "from headgate.a.b import one\n"}),
        (layout.slivers, {"a/b.py": _SHORT, "a/c.py": "def f():\n    import headgate.a.b\n"}),
    ],
)
def test_layout_rule_on_a_planted_breach_finds_it(
    rule: layout.Rule, planted: dict[str, str]
) -> None:
    assert rule(_package(planted))


@pytest.mark.parametrize(
    ("rule", "harmless"),
    [
        (layout.gerund_stems, {"testing.py": _SHORT, "testing/plugin.py": _SHORT}),
        (layout.repeated_stems, {"catalog/__init__.py": _SHORT, "files/__init__.py": _SHORT}),
        (layout.slivers, {"a/b.py": _SHORT, "c/d.py": "from headgate.a.b import one\n"}),
        (
            layout.slivers,
            {
                "a/b.py": _SHORT,
                "a/c.py": "from headgate.a.b import one\n",
                "a/d.py": "from headgate.a import b\n",
            },
        ),
    ],
)
def test_layout_rule_on_harmless_modules_is_silent(
    rule: layout.Rule, harmless: dict[str, str]
) -> None:
    assert rule(_package(harmless)) == []


def test_longest_chain_counts_imports_that_are_run_when_a_module_is_loaded() -> None:
    package = _package(
        {
            "a.py": "from headgate.b import x\n",
            "b.py": "from headgate import c\n\n\ndef later() -> None:\n    import headgate.d\n",
            "c.py": "if TYPE_CHECKING:\n    from headgate.d import y\n",
            "d.py": _SHORT,
        }
    )
    assert layout.longest_chain(layout.import_graph(package)) == ("a", "b", "c")


def test_import_share_counts_every_line_of_an_import() -> None:
    text = '"""Text."""\n\nfrom a import (\n    b,\n    c,\n)\n\n# A reason.\nd = b + c\n'
    assert layout.import_share(_package({"a.py": text})) == 4 / 5


def _package(texts: dict[str, str]) -> tuple[Module, ...]:
    return tuple(parse(path, text) for path, text in texts.items())
