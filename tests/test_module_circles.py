"""No module imports itself by way of others, imports within functions included."""

from __future__ import annotations

import grimp

PACKAGES = ("pipelines", "assets", "ops", "resources")


def test_modules_import_in_no_circle() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    left = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # Take away those that import nothing that is left, and so on: what stays is in a circle, or leads into one.
    while free := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in free}
    assert sorted(left) == []
