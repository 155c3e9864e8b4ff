"""Flows as YAML: the same flow as in Python, errors with their lines, and a schema that is up to date."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from pipelines import catalog as shipped
from pipelines.errors import FlowError, FlowFileError
from pipelines.flowmix import (
    AssocCount,
    Average,
    Collect,
    Count,
    DistinctCount,
    Event,
    FirstN,
    Flow,
    GroupCount,
    LastN,
    Max,
    Min,
    Policy,
    StdDev,
    Sum,
    WindowAggregator,
    and_,
    eq,
    gt,
    has,
    has_not,
    in_,
    load_flow,
    load_flows,
    lte,
    not_,
    or_,
    python,
    range_,
)
from pipelines.flowmix.yaml_models import FlowForm, json_schema
from pipelines.quality import drop
from pipelines.sources import JsonFiles
from pipelines.testing import TICK, run_flow

SCHEMA = Path(__file__).parents[2] / "docs" / "flow.schema.json"

EVERYTHING = """\
flow: everything
description: Every form once
clock: processing
streams:
  - name: s
    source: "k string, v bigint, at bigint, day date"
    id: k
    timestamp: at * 1000
    delay: 5
    slice_by: day
    operations:
      - filter: v > 1
      - select: [k, v]
      - filter:
          and:
            - {eq: {k: a}}
            - {or: [{gt: {v: 1}}, {in: {k: [a, b]}}, {has_not: v}]}
            - {not: {lte: {v: 0}}}
            - {range: {v: [1, 9]}}
            - {has: k}
      - filter: {python: keep}
      - each: {function: twice, schema: "k string, v bigint"}
      - compute: {k string: k, v bigint: v + 1}
      - partition: k
      - aggregate:
          aggregators:
            - count
            - count: {field: v, output: having}
            - {sum: v}
            - sum: {field: v, output: total}
            - {average: v}
            - {min: v}
            - {max: v}
            - {distinct_count: v}
            - {std_dev: v}
            - {collect: v}
            - first_n: {n: 2, field: v}
            - last_n: {n: 2, field: v, sort_field: v, reverse: true, output: ends}
            - own: {name: last, arguments: {field: v}}
          trigger: {count: 2}
          evict: {time: 60}
          clear_on_trigger: true
          window_evict_millis: 1000
      - persist: aggregates
      - to: [t, spans]
  - name: t
    operations:
      - partition
      - sort: {by: [total desc, k], top_n: 3, trigger: {count: 1}, flush: true}
      - sort: {by: total, progressive: 2}
      - sort: {by: total, tumbling: {time_delta_lt: 9}}
      - switch: {open: {count: 9}, evict: {count: 5}, close: {time: 3}, window_evict_millis: 7000}
      - split: {default: total > 1, paths: {left: total > 2, right: {gt: {total: 3}}}, all: [rest]}
      - gate: {name: checked, checks: [{drop: {expectation: column_values_to_not_be_null, column: total}}]}
      - output
  - name: spans
    operations:
      - partition: k
      - aligned: {aggregators: [count, {sum: total}], every: 86400, size: 172800, offset: 3600, time_zone: Europe/Berlin}
      - session: {aggregators: [{sum: {field: sum, output: sums}}], gap: 30}
      - output
  - {name: left, operations: [{to: [joined]}]}
  - {name: right, operations: [{to: joined}]}
  - {name: rest, operations: [{collect: {trigger: {count: 2}, evict: {count: 2}, field: all}}, output]}
  - name: joined
    operations:
      - join: {left: left, right: right, evict: {count: 3}}
      - aggregate:
          aggregators: [{assoc_count: k}, {group_count: {fields: [total, sum], output: n}}]
          trigger: {count: 1}
          evict: {count: 1}
      - output
"""


class Last(WindowAggregator):
    outputs = "own bigint"

    def __init__(self, field: str) -> None:
        self.field, self.value = field, 0

    def added(self, event: Event) -> None:
        self.value = event[self.field]

    def evicted(self, event: Event) -> None:
        pass

    def aggregate(self) -> int:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Last) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def keep(event: Event) -> bool:
    return True


def twice(event: Event) -> list[Event]:
    return [event, event]


FUNCTIONS: dict[str, Any] = {"keep": keep, "twice": twice, "last": Last}


def in_python() -> Flow:
    count, time, delta = Policy.count, Policy.time, Policy.time_delta_lt
    return (
        Flow("everything", "Every form once", clock="processing")
        .stream(
            "s", "k string, v bigint, at bigint, day date", id="k", timestamp="at * 1000", delay=5, slice_by="day",
        )
        .filter("v > 1")
        .select("k", "v")
        .filter(and_(
            eq("k", "a"),
            or_(gt("v", 1), in_("k", "a", "b"), has_not("v")),
            not_(lte("v", 0)),
            range_("v", 1, 9),
            has("k"),
        ))
        .filter(python(keep))
        .each(twice, "k string, v bigint")
        .compute({"k string": "k", "v bigint": "v + 1"})
        .partition("k")
        .aggregate(
            Count(), Count("having", field="v"), Sum("v"), Sum("v", "total"), Average("v"), Min("v"), Max("v"),
            DistinctCount("v"), StdDev("v"), Collect("v"), FirstN(2, field="v"),
            LastN(2, "v", True, field="v", output="ends"), Last("v"),
            trigger=count(2), evict=time(60), clear_on_trigger=True, window_evict_millis=1000,
        )
        .persist("aggregates")
        .to("t", "spans")
        .stream("t")
        .partition()
        .sort("total desc", "k", top_n=3, trigger=count(1), flush=True)
        .sort("total", progressive=2)
        .sort("total", tumbling=delta(9))
        .switch(open=count(9), evict=count(5), close=time(3), window_evict_millis=7000)
        .split(default="total > 1", paths={"left": "total > 2", "right": gt("total", 3)}, all=["rest"])
        .gate(drop("column_values_to_not_be_null", column="total"), name="checked")
        .output()
        .stream("spans").partition("k")
        .aligned(Count(), Sum("total"), every=86_400, size=172_800, offset=3600, time_zone="Europe/Berlin")
        .session(Sum("sum", "sums"), gap=30).output()
        .stream("left").to("joined")
        .stream("right").to("joined")
        .stream("rest").collect(trigger=count(2), evict=count(2), field="all").output()
        .stream("joined").join("left", "right", count(3))
        .aggregate(AssocCount("k"), GroupCount("total", "sum", output="n"), trigger=count(1), evict=count(1))
        .output()
        .build()
    )  # fmt: skip


def written(folder: Path, text: str, name: str = "flow.yaml") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def plainly(flow: Flow) -> Any:
    """A flow as something to compare: aggregators by what they are."""

    def shown(value: Any) -> Any:
        if hasattr(value, "accumulator"):
            return type(value).__name__, {k: v for k, v in vars(value).items() if not callable(v)}
        if hasattr(value, "__dataclass_fields__"):
            return type(value).__name__, {
                name: shown(getattr(value, name)) for name in value.__dataclass_fields__ if name != "at"
            }
        return [shown(one) for one in value] if isinstance(value, tuple | list) else value

    return flow.name, flow.description, flow.clock, [shown(stream) for stream in flow.streams.values()]


def test_every_form_gives_what_python_gives(tmp_path: Path) -> None:
    flow = load_flow(written(tmp_path, EVERYTHING), FUNCTIONS)
    assert plainly(flow) == plainly(in_python())
    assert flow.streams["s"].operations[0].at.line == 12
    assert flow.streams["s"].operations[0].at.file == str(tmp_path / "flow.yaml")


def test_a_loaded_flow_runs(tmp_path: Path) -> None:
    text = """
flow: late
streams:
  - name: departures
    source: "origin string, dep_delay double"
    operations:
      - filter: {gt: {dep_delay: 15}}
      - partition: [origin]
      - aggregate: {aggregators: [{average: {field: dep_delay, output: avg}}], trigger: {count: 2}, evict: {count: 9}}
      - output
"""
    flow = load_flow(written(tmp_path, text))
    script = [{"origin": "EWR", "dep_delay": 20.0}, TICK, {"origin": "EWR", "dep_delay": 40.0}]
    assert run_flow(flow, {"departures": script}, clock="processing") == {
        "departures": [{"origin": "EWR", "avg": 30.0}]
    }


def test_sources_relative_paths_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_TEST_BROKER", "broker:9092")
    text = """
flow: sources
streams:
  - name: a
    source: {json_files: {path: data/a, schema: "k string", max_files_per_batch: 3, options: {multiLine: true}}}
    operations: [output]
  - name: b
    source: {kafka: {servers: "${FLOW_TEST_BROKER}", topics: [t], schema: "k string"}}
    operations: [output]
  - name: c
    source: {rate: {rows_per_batch: 5}}
    operations: [output]
"""
    flow = load_flow(written(tmp_path, text))
    files, kafka = flow.streams["a"].source, flow.streams["b"].source
    assert isinstance(files, JsonFiles)
    assert (files.path, files.max_files_per_batch, files.options) == (str(tmp_path / "data/a"), 3, {"multiLine": True})
    assert kafka.servers == "broker:9092"
    monkeypatch.delenv("FLOW_TEST_BROKER")
    with pytest.raises(FlowFileError, match="no variable FLOW_TEST_BROKER"):
        load_flow(tmp_path / "flow.yaml")


@pytest.mark.parametrize(
    "option",
    [
        "kafka.sasl.jaas.config: 'x password=\"hunter2\";'",
        "kafka.ssl.key.password: hunter2",
        "kafka.ssl.keystore.key: hunter2",
    ],
)
def test_secrets_of_kafka_are_references(tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_TEST_LOGIN", "hunter2")
    text = f"""
flow: sources
streams:
  - name: b
    source: {{kafka: {{servers: "broker:9092", topics: [t], schema: "k string", options: {{{option}}}}}}}
    operations: [output]
"""
    with pytest.raises(FlowFileError, match="a secret is not stored; write a reference") as refused:
        load_flow(written(tmp_path, text))
    assert "hunter2" not in str(refused.value)
    name = option.split(":")[0]
    for value in ("hunter2${FLOW_TEST_LOGIN}", 'x user="${FLOW_TEST_LOGIN}" password="hunter2";'):
        with pytest.raises(FlowFileError, match="a secret is not stored"):
            load_flow(written(tmp_path, text.replace(option, f"{name}: '{value}'")))
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    value = f'{module} required user="me" password="${{FLOW_TEST_LOGIN}}";'
    login = text.replace(option, f"kafka.sasl.jaas.config: '{value}'")
    assert 'password="hunter2"' in str(load_flow(written(tmp_path, login)).streams["b"].source._reader_options())
    for value in ("env:FLOW_TEST_LOGIN", "${FLOW_TEST_LOGIN}"):
        flow = load_flow(written(tmp_path, text.replace(option, f"{name}: '{value}'")))
        assert flow.streams["b"].source._reader_options()[name] == "hunter2"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kafka.sasl.jaas.config", 'com.sun.security.auth.module.JndiLoginModule required x="${A}";'),
        (
            "kafka.sasl.jaas.config",
            '/* org.apache.kafka.common.security.plain.PlainLoginModule */ evil.Module required x="${A}";',
        ),
        ("kafka.sasl.client.callback.handler.class", "evil.Handler"),
        ("kafka.interceptor.classes", "evil.Interceptor"),
        ("kafka.SSL.engine.factory.class", "env:A"),
        ("kafka.metric.reporters", "${A}"),
        ("kafka.security.providers", "evil.Provider"),
        ("kafka.sasl.kerberos.kinit.cmd", "/tmp/evil"),
        ("kafka.SASL.Kerberos.Kinit.Cmd", "env:A"),
    ],
)
def test_a_flows_file_chooses_no_class(
    tmp_path: Path, option: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A", "evil.Class")
    text = f"""
flow: sources
streams:
  - name: b
    source: {{kafka: {{servers: "b:9092", topics: [t], schema: "k string", options: {{{option}: '{value}'}}}}}}
    operations: [output]
"""
    with pytest.raises(FlowFileError, match=r"names a class to run|begins with Kafka's PlainLoginModule"):
        load_flow(written(tmp_path, text))


TAGGED = ("!!int ''", "!!int '-'", "!!float ''", "!!bool maybe", "!!timestamp foo", "!!str x", "! x")
HEAD = "flow: f\nstreams:\n  - name: s\n    source: k string, v bigint\n    operations:\n"


def reading(options: str) -> str:
    return HEAD.replace("k string, v bigint", f"{{json_files: {{path: in, schema: k string, options: {{{options}}}}}}}")


def reading_topics(**given: str) -> str:
    stated = {"servers": "b:9092", "topics": "[t]", "schema": "k string", **given}
    return HEAD.replace("k string, v bigint", f"{{kafka: {{{', '.join(f'{k}: {v}' for k, v in stated.items())}}}}}")


@pytest.mark.parametrize(
    ("variable", "given"),
    [
        ("TRIDELTA_REGISTRY", {"servers": '"${TRIDELTA_REGISTRY}"'}),
        ("TRIDELTA_REGISTRY", {"options": "{kafka.client.id: 'env:TRIDELTA_REGISTRY'}"}),
        ("PGPASSWORD", {"options": "{kafka.sasl.jaas.config: '${PGPASSWORD}'}"}),
        ("AWS_REGION", {"topics": '["${AWS_REGION}"]'}),
        ("FLOW_TOKEN", {"schema": '"${FLOW_TOKEN}"'}),
        ("DB_PASS", {"topics": '["${DB_PASS}"]'}),
        ("FLOW_TOKEN", {"options": "{kafka.client.id: 'a-${FLOW_TOKEN}'}"}),
    ],
)
def test_variables_that_are_not_for_files(
    tmp_path: Path, variable: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are set or not."""
    for _ in range(2):
        with pytest.raises(FlowFileError, match=f"the variable {variable} is") as refused:
            load_flow(written(tmp_path, f"{reading_topics(**given)}      - output\n"))
        assert "hunter2" not in str(refused.value)
        monkeypatch.setenv(variable, "hunter2")


def test_a_file_on_disk_is_no_value_of_an_option(tmp_path: Path) -> None:
    text = reading_topics(options="{kafka.client.id: 'file:/etc/hostname'}")
    with pytest.raises(FlowFileError, match=r"line 3.*takes no file:PATH"):
        load_flow(written(tmp_path, f"{text}      - output\n"))


def test_a_certificate_is_read_from_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("PEM")
    for option, file, taken in (
        ("kafka.ssl.truststore.certificates", tmp_path / "ca.pem", True),
        ("kafka.ssl.keystore.key", tmp_path / "ca.pem", True),
        ("kafka.ssl.keystore.key", "/proc/self/environ", False),
    ):
        text = reading_topics(options=f"{{{option}: 'file:{file}'}}") + "      - output\n"
        with nullcontext() if taken else pytest.raises(FlowFileError, match="is no file of a flow's"):
            source = load_flow(written(tmp_path, text)).streams["s"].source
            assert source._reader_options()[option] == "PEM"


def test_a_short_variable_is_not_seen_in_every_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGP_FOLDER", "e")
    text = reading("nope: 1").replace("path: in", "path: '${PGP_FOLDER}/a'")
    with pytest.raises(FlowFileError, match="no option nope") as refused:
        load_flow(written(tmp_path, f"{text}      - output\n"))
    assert "${" not in str(refused.value)


@pytest.mark.parametrize("given", [{"topics": '["${FLOW_TEXT}"]'}, {"schema": '"${FLOW_TEXT}"'}])
def test_an_error_has_the_name_of_a_variable_in_place_of_its_value(
    tmp_path: Path, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_TEXT", "hunter2 '\\/")
    with pytest.raises(FlowFileError, match=r"\$\{FLOW_TEXT\}") as refused:
        load_flow(written(tmp_path, f"{reading_topics(**given)}      - output\n"))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line", "path", "said"),
    [
        ("", 1, "", "is empty"),
        ("flow: [f", 1, "", "is no YAML"),
        ('flow: f\nstreams: "s\nname: t\n', 4, "", "while scanning a quoted scalar that begins on line 2"),
        ("flow: f\n", 1, "streams", "is missing"),
        (HEAD.replace("flow: f", "flow: F-1"), 1, "flow", "does not match"),
        ("flow: f\nflow: g\n", 1, "", 'has the key "flow" twice'),
        (HEAD.replace("    operations:", "    delay: soon\n    operations:"), 5, "streams[0].delay", "valid integer"),
        (HEAD.replace("    operations:", "    delay: soon\n    operations:"), 5, "streams[0].delay", "got 'soon'"),
        (HEAD + "      - filtr: v > 1\n      - output\n", 6, "streams[0].operations[0].filtr", 'did you mean "filter"'),
        (HEAD + "      - filter: v > 1\n        select: k\n", 6, "streams[0].operations[0]", "exactly one of"),
        (HEAD + "      - filter:\n      - output\n", 6, "streams[0].operations[0]", "filter says nothing"),
        (HEAD + "      - outptu\n", 6, "streams[0].operations[0]", "'output'"),
        (HEAD + "      - filter: {eq: {k: a, v: 1}}\n      - output\n", 6, "streams[0].operations[0].filter.eq", "at most 1"),
        (HEAD + "      - filter: {eq: {k: a}, has: v}\n      - output\n", 6, "streams[0].operations[0].filter", "exactly one"),
        (
            HEAD + "      - aggregate:\n          aggregators: [count]\n"
            "          trigger: {count: x}\n          evict: {count: 1}\n",
            8, "streams[0].operations[0].aggregate.trigger.count", "valid integer",
        ),
        (
            HEAD + "      - aggregate:\n          aggregators: [count]\n          trigger: {count: 1}\n",
            6, "streams[0].operations[0].aggregate.evict", "is missing",
        ),
        (
            HEAD + "      - aggregate:\n          aggregators: [{sum: {field: v, output: _txid}}]\n"
            "          trigger: {count: 1}\n          evict: {count: 1}\n",
            6, "streams[0].operations[0]", "starts with _",
        ),
        (HEAD + "      - output\n      - filter: vv > 1\n      - output\n", 7, "streams[0].operations[1]", 'did you mean "v"'),
        (HEAD + "      - filter: reflect('a', 'b') = 1\n      - output\n", 6, "streams[0].operations[0]", "not allowed"),
        (HEAD + "      - filter: v > 1\n", 6, "streams[0].operations[0]", "You must specify at least one output"),
        (HEAD + "      - output\n      - to: nowhere\n", 7, "streams[0].operations[1]", 'a stream "nowhere"'),
        (HEAD + "      - sort: {by: v}\n      - output\n", 6, "streams[0].operations[0]", "eviction policy"),
        (HEAD + "      - each: os.system\n      - output\n", 6, "streams[0].operations[0]", 'no function "os.system"'),
        (HEAD + "      - each: eval\n      - output\n", 6, "streams[0].operations[0]", 'no function "eval"'),
        (HEAD + "      - each: flights.JsonFiles\n      - output\n", 6, "streams[0].operations[0]", "does not define JsonFiles"),
        (HEAD + "      - output\n  - name: s\n    source: k string\n    operations: [output]\n", 7, "streams[1]", "already"),
        (HEAD + "      - !!python/object/apply:os.system ['true']\n", 6, "", "holds a tag"),
        *((f"flow: f\nstreams: {given}\n", 2, "", "holds a tag") for given in TAGGED),
        (HEAD + "      - select: ['k`']\n      - output\n", 6, "streams[0].operations[0]", "no such field"),
        (HEAD + "      - filter: k = '\\UFFFFFFFF'\n      - output\n", 6, "streams[0].operations[0]", "is no character"),
        (HEAD + "      - filter: k = '\\uD800'\n      - output\n", 6, "streams[0].operations[0]", "is no character"),
        (HEAD + '      - filter: {eq: {k: "\\uD800"}}\n      - output\n', 6, "", "half a character"),
        (reading("cleanSource: delete"), 3, "streams[0]", "no option cleanSource"),
        (reading("path: /etc"), 3, "streams[0]", "path is no option of a reader"),
        (reading("max_files_per_batch: 1"), 3, "streams[0]", "max_files_per_batch is no option of a reader"),
        (HEAD.replace("k string", "k strin(g"), 3, "streams[0]", "not a schema"),
    ],
)  # fmt: skip
def test_errors_have_line_and_path(tmp_path: Path, text: str, line: int, path: str, said: str) -> None:
    if text.endswith("operations:\n"):
        text += "      - output\n"
    with pytest.raises(FlowFileError) as caught:
        load_flow(written(tmp_path, text))
    ((at, where, problem),) = caught.value.faults
    assert (at, where) == (line, path), problem
    assert said in problem
    assert f"line {line}" in str(caught.value)


CATALOG = """
from pipelines.flowmix import Event, WindowAggregator, python
from pipelines.catalog.own_code import imported

CALLS = []

def doubled(event): return {"w": event["v"] * 2}
def large(event): return event["v"] > 1
def helper(**arguments): CALLS.append(arguments)
def hidden(event): CALLS.append(event)
small = python(lambda event: event["v"] < 1)

class Newest(WindowAggregator):
    outputs = "newest bigint"
    def __init__(self, field): self.field, self.value = field, None
    def added(self, event): self.value = event[self.field]
    def evicted(self, event): pass
    def aggregate(self): return self.value

class Other:
    def __init__(self, **arguments): CALLS.append(arguments)

FUNCTIONS = (doubled, large, helper, small, Newest, Other, imported)
"""


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the catalog, as a user writes it."""
    made = ModuleType("pipelines.catalog.shop")
    exec(CATALOG, vars(made))
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def using(operation: str) -> str:
    return f"{HEAD}      - {operation}\n      - output\n"


def aggregated(name: str, arguments: str) -> str:
    own = f"{{own: {{name: {name}, arguments: {arguments}}}}}"
    return using(f"aggregate: {{aggregators: [{own}], trigger: {{count: 1}}, evict: {{count: 9}}}}")


def test_a_file_names_what_a_module_of_the_catalog_lists(tmp_path: Path, catalog: ModuleType) -> None:
    script = {"s": [{"k": "a", "v": v} for v in (0, 2)]}
    found = {
        "each: {function: shop.doubled, schema: w bigint}": [{"w": 0}, {"w": 4}],
        "filter: {python: shop.large}": [{"k": "a", "v": 2}],
        "filter: {python: shop.small}": [{"k": "a", "v": 0}],
    }
    for operation, events in found.items():
        assert run_flow(load_flow(written(tmp_path, using(operation))), script) == {"s": events}
    flow = load_flow(written(tmp_path, aggregated("shop.Newest", "{field: v}")))
    assert run_flow(flow, script) == {"s": [{"newest": 0}, {"newest": 2}]}


@pytest.mark.parametrize(
    "name",
    ["own_code.imported", "own_code.own_code", "package.flows_of", "flow.FlowSpec", "flow.DailySlices", "flow.as_topology",
     "flights_data.lay_out", "flights_expected.expected", "flights_flows.late_departures", "flights.build", "shop.hidden",
     "shop.imported", "shop.CALLS", "shop.FUNCTIONS"],
)  # fmt: skip
def test_a_file_names_nothing_else_of_the_catalog(tmp_path: Path, catalog: ModuleType, name: str) -> None:
    laid = tmp_path / "laid"
    arguments = f"{{module: marker_mod, named: x, package: marker_mod, folder: {laid}, days: 2}}"
    for text in (using(f"each: {name}"), using(f"filter: {{python: {name}}}"), aggregated(name, arguments)):
        with pytest.raises(FlowFileError, match="no function"):
            load_flow(written(tmp_path, text))
    assert not laid.exists()
    assert catalog.CALLS == []


@pytest.mark.parametrize("name", ["shop.helper", "shop.Other", "shop.small", "given", "Given"])
def test_what_is_no_aggregator_is_not_called_to_find_out(tmp_path: Path, catalog: ModuleType, name: str) -> None:
    functions = {"given": catalog.helper, "Given": catalog.Other}
    with pytest.raises(FlowFileError, match=f"{name} is no WindowAggregator"):
        load_flow(written(tmp_path, aggregated(name, "{a: 1}")), functions)
    assert catalog.CALLS == []


def test_a_module_without_a_list_offers_what_it_defines(tmp_path: Path, catalog: ModuleType) -> None:
    del catalog.FUNCTIONS
    script = {"s": [{"k": "a", "v": 2}]}
    flow = load_flow(written(tmp_path, using("each: {function: shop.doubled, schema: w bigint}")))
    assert run_flow(flow, script) == {"s": [{"w": 4}]}
    with pytest.raises(FlowFileError, match="does not define imported"):
        load_flow(written(tmp_path, using("each: shop.imported")))
    for name in ("shop.helper", "shop.Other"):
        with pytest.raises(FlowFileError, match="is no WindowAggregator"):
            load_flow(written(tmp_path, aggregated(name, "{a: 1}")))
    assert catalog.CALLS == []


def test_the_engines_own_modules_list_none() -> None:
    for own in pkgutil.iter_modules(shipped.__path__):
        assert importlib.import_module(f"pipelines.catalog.{own.name}").FUNCTIONS == ()


def test_a_list_of_functions_is_a_list(tmp_path: Path, catalog: ModuleType) -> None:
    catalog.FUNCTIONS = catalog.doubled
    with pytest.raises(FlowFileError, match=r"FUNCTIONS of pipelines\.catalog\.shop is no tuple or list"):
        load_flow(written(tmp_path, using("each: shop.doubled")))


def test_all_faults_of_a_form_are_told_at_once(tmp_path: Path) -> None:
    text = HEAD + "      - selct: k\n      - persist: Table\n      - output: 1\n"
    with pytest.raises(FlowFileError) as caught:
        load_flow(written(tmp_path, text))
    assert [line for line, _, _ in caught.value.faults] == [6, 7, 8]


def test_a_field_that_only_build_can_miss_has_its_line(tmp_path: Path) -> None:
    text = """
flow: f
streams:
  - name: t
    operations:
      - filter: {gt: {vv: 1}}
      - output
  - name: s
    source: v bigint
    operations: [{to: t}]
"""
    with pytest.raises(FlowFileError) as caught:
        load_flow(written(tmp_path, text))
    assert caught.value.faults[0][:2] == (6, "streams[0].operations[0]")


def test_a_small_file_cannot_grow_without_end(tmp_path: Path) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for one, other in zip("abcdefg", "bcdefgh", strict=True):
        bomb += f"{other}: &{other} [{', '.join([f'*{one}'] * 10)}]\n"
    with pytest.raises(FlowFileError, match="too many parts"):
        load_flow(written(tmp_path, bomb))
    with pytest.raises(FlowFileError, match="too many parts, or too deep"):
        load_flow(written(tmp_path, "a: &a [*a]\n"))
    with pytest.raises(FlowFileError, match="cannot be read"):
        load_flow(tmp_path / "nowhere.yaml")


def test_a_folder_of_flows(tmp_path: Path) -> None:
    text = HEAD + "      - output\n"
    written(tmp_path, text.replace("flow: f", "flow: two"), "b.yaml")
    written(tmp_path, text.replace("flow: f", "flow: one"), "a.yml")
    written(tmp_path, "not a flow", "notes.txt")
    assert [flow.name for flow in load_flows(tmp_path)] == ["one", "two"]
    written(tmp_path, text.replace("flow: f", "flow: two"), "c.yaml")
    with pytest.raises(FlowFileError, match="already"):
        load_flows(tmp_path)


def test_the_published_schema_is_up_to_date() -> None:
    """If it is not: python -m pipelines.flowmix.yaml_models > docs/flow.schema.json"""
    assert json.loads(SCHEMA.read_text()) == json_schema()


def test_the_published_schema_takes_what_the_loader_takes() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    everything = yaml.safe_load(EVERYTHING)
    validator.validate(everything)
    FlowForm.model_validate(everything)
    for wrong in ({"filtr": "v > 1"}, {"filter": "v", "select": "k"}, {"filter": None}, "outptu", {"persist": "T"}):
        operations = [wrong, "output"]
        assert not validator.is_valid(
            {"flow": "f", "streams": [{"name": "s", "source": "v bigint", "operations": operations}]}
        )


def test_an_error_of_the_flow_is_the_cause(tmp_path: Path) -> None:
    with pytest.raises(FlowFileError) as caught:
        load_flow(written(tmp_path, HEAD + "      - sort: {by: v}\n      - output\n"))
    assert isinstance(caught.value.__cause__, FlowError)


def test_the_yaml_of_the_pages_is_a_flow(tmp_path: Path) -> None:
    page = (SCHEMA.parent / "flows.md").read_text("utf-8")
    blocks = [block.split("```")[0] for block in page.split("```yaml\n")[1:]]
    assert [load_flow(written(tmp_path, block)).name for block in blocks] == ["late_departures"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 700 + "]" * 700, "too deep"),
        ("a: " + "{a: " * 700 + "1" + "}" * 700, "too deep"),
        ("- " * 700 + "1", "too deep"),
        ("? " * 5000 + "1", "too deep"),
        ("a: " + "[" * 200_000, "too deep"),
        ("flow: " + "1" * 5000, "number"),
        ("flow: " + "1:" * 20_000 + "1", "number"),
        ("".join(f"k{number}: 1\n" for number in range(60_000)), "larger than"),
        ("a: [" + "x," * 120_000 + "]", "too many parts"),
        ("\ufeff", "is empty"),
        ("a: !!python/object/apply:os.system ['true']", "holds a tag"),
    ],
)
def test_what_no_flow_has_is_refused_before_it_costs_anything(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(FlowFileError, match=problem):
        load_flow(written(tmp_path, text))


def test_only_ordinary_files_are_read(tmp_path: Path) -> None:
    """A pipe has no end while nobody writes, a device has none at all."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    for name in ("pipe", "zero", "folder", "loop"):
        with pytest.raises(FlowFileError, match=r"no ordinary file|cannot be read"):
            load_flow(tmp_path / f"{name}.yaml")
