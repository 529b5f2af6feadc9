"""What the pages say about speed is what the committed results hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
if not (BENCHMARKS / "speed.md").exists():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)

from speed import goals, page  # noqa: E402


def text(name: str) -> str:
    """A page, its lines joined, without emphasis."""
    return re.sub(r"\s+", " ", (ROOT / name).read_text(encoding="utf-8").replace("**", ""))


def result(name: str) -> Any:
    return json.loads((BENCHMARKS / name).read_text(encoding="utf-8"))


def forks(*path: str) -> dict[str, dict[str, Any]]:
    """The rows of one setting by method."""
    found = result(goals.FORKS)
    for step in path:
        found = found[step]
    return {row["method"]: row for row in found}


def told(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def test_the_goals_are_those_of_the_results() -> None:
    assert goals.page() == goals.PAGE.read_text(encoding="utf-8"), "run: python benchmarks/speed/goals.py"
    assert "missed" in goals.table() and "not measured" in goals.table(), "what was not reached is said"


def test_the_session_is_that_of_its_result() -> None:
    inside = page.section(result(goals.SESSION), goals.SESSION)
    assert f"{page.BEGIN}\n{inside}\n{page.END}" in page.PAGE.read_text(encoding="utf-8")


def test_a_goal_is_reached_or_missed_by_its_number() -> None:
    rows = {
        "reached": [goals.Row("b", "a", "x", 2.0, most=2.0), goals.Row("b", "a", "x", 2.0, least=2.0)],
        "**missed**": [goals.Row("b", "a", "x", 2.01, most=2.0), goals.Row("b", "a", "x", 1.99, least=2.0)],
        "measured": [goals.Row("b", "a", "x", 2.0)],
        "not measured": [goals.Row("b", "a")],
    }
    assert all(row.cells[-1] == verdict for verdict, each in rows.items() for row in each)


def test_ratios_of_steps() -> None:
    said = text("benchmarks/speed.md")
    settings = [("llava", name) for name in ("none", "two", "three", "four")]
    settings += [("llava_eight", name) for name in ("none", "one", "four")]
    settings += [("llava_two", name) for name in ("none", "four")]
    settings += [("qwen", rows, name) for rows in ("1", "8") for name in ("none", "four")]
    assert not [where for where in settings if told(forks(*where)["cai"]) not in said]
    contrasted = [f"{rows}{name}" for rows in ("1", "8") for name in ("", ", none")]
    assert not [where for where in contrasted if told(forks("contrasted", where)["cai+contrast"]) not in said]
    second = [row for row in result(goals.LAYERS)["second_tier"] if row["method"] not in ("regular", "cai")]
    assert not [row["method"] for row in second if f"| {row['ms']:.2f} | {told(row)} |" not in said]


def test_headlines() -> None:
    """What README and the page for users promise."""
    regular, cai = (forks("llava", "four")[name] for name in ("regular", "cai"))
    contrast, eight = forks("contrasted", "1")["cai+contrast"], forks("llava_eight", "four")
    rows = {
        (row["way"], row["method"]): row["ms/token"] for row in result("speed/results/h200-explore.json")["rows"]
    }
    times = rows["authors", "cai"] / rows["graph", "cai"]
    readme, page_ = text("README.md"), text("docs/speed.md")
    assert f"{regular['ms']:.1f} ms per token, {cai['ms']:.1f} with CAI" in readme and times > 10
    assert "ten times faster than the published way" in readme
    assert f"the tilt costs {cai['ratio']:.2f} and with the contrast {contrast['ratio']:.2f}" in text(
        "docs/evidence.md"
    )
    off = {row["method"]: row["ms_per_token"] for row in result("speed/results/h200-llava-off.json")["costs"]}
    more = [100 * (row["ratio"] - 1) for row in (cai, contrast, eight["cai"])]
    qwen = forks("qwen", "1", "four")
    prefill, tilted, *_ = result(goals.SESSION)["llava, batch 1"]["found"]["costs"]
    later = 100 * (tilted["prefill_ratio"] - 1)
    for sentence in (
        f"| regular | {off['regular']:.0f} | {regular['ms']:.2f} | |",
        f"| CAI | {off['cai']:.0f} | {cai['ms']:.2f} | {more[0]:.1f} % more |",
        f"| CAI with contrast | {off['cai+contrast']:.0f} | {contrast['ms']:.2f} | {more[1]:.1f} % more |",
        f"takes {times:.1f} times as long as captured CAI",
        f"regular decoding takes {eight['regular']['ms']:.2f} ms per step, CAI {more[2]:.1f} % more",
        f"takes {qwen['regular']['ms']:.1f} ms per token, CAI {100 * (qwen['cai']['ratio'] - 1):.1f} % more",
        f"The first token comes after {prefill['prefill_ms']:.0f} ms, with CAI {later:.0f} % later",
        f"took [{off['regular']:.0f}](../benchmarks/speed/results/h200-llava-off.json) and "
        f"[{rows['off', 'regular']:.0f}](../benchmarks/speed/results/h200-explore.json) ms per token in two runs",
    ):
        assert sentence in page_, sentence


def test_the_server() -> None:
    said = text("docs/speed.md")
    parts = {
        (part["what"], part.get("way"), part.get("rows", part.get("clients"))): part
        for part in result(goals.LANES)["parts"]
        if part.get("method") == "cai"
    }
    one, many, before = (parts["http", *which] for which in (("graph", 1), ("graph", 32), ("off", 32)))
    loop, batch = parts["generate", "graph", 1], parts["generate", "graph", 32]
    speed, whole, steps = (
        many["tokens_per_second"],
        batch["tokens_per_second"],
        batch["tokens_per_second_of_steps"],
    )
    first = [part["first_token_ms"] for part in (one, many)]
    middle = [times["median"] for times in first]
    for sentence in (
        f"| {one['ms_per_token']:.2f} | bare captured loop: {loop['ms_per_step']:.2f} |",
        f"| {speed:,.0f} | bare loop on a batch of 32, with its prompts: {whole:,.0f} ({speed / whole:.0%}); "
        f"its steps alone: {steps:,.0f} ({speed / steps:.0%}) |".replace("%", " %"),
        f"| {before['tokens_per_second']:.0f} | {speed / before['tokens_per_second']:.1f} times less |",
        f"| {middle[0]:.0f}, {middle[1]:.0f} (p95 {first[1]['p95']:.0f}) | {middle[1] / middle[0]:.1f} times",
    ):
        assert sentence in said, sentence


def test_how_far_the_server_s_figures_go() -> None:
    parts = result(goals.LANES)["parts"]
    both = next(part for part in parts if part["what"] == "overlap")
    beside, in_turn = (
        next(part["tokens_per_second"] for part in parts if part["what"] == "lanes" and part["way"] == way)
        for way in ("beside", "in turn")
    )
    many = next(part for part in parts if part["what"] == "http" and part["clients"] == 32 and part["captured"])
    loop = next(part for part in parts if part["what"] == "generate" and part["rows"] == 32)
    before = next(part for part in result("server/results/lanes_before.json")["parts"] if part.get("way") == "off")
    where, share = many["where"], many["where"]["shares"]
    whole, steps = loop["tokens_per_second"], loop["tokens_per_second_of_steps"]
    said = text("docs/speed.md")
    for sentence in (
        f"The limit is {100 * whole / steps:.0f} % of the steps alone.",
        f"makes {whole:,.0f} of {steps:,.0f} tokens per second with its prompts",
        f"four steps take {both['ms_steps']:.1f} ms, a prompt {both['ms_reading']:.1f}, both together "
        f"{both['ms_beside']:.1f} beside each other and {both['ms_in_turn']:.1f} in turn",
        f"both ways give {beside:,.0f} and {in_turn:,.0f} tokens per second",
        f"{share['reading']:.0%} of the inference thread's time goes into reading".replace("%", " %"),
        f"{where['ms_per_pass_on_the_host']:.0f} ms a pass, {where['prompts'] / where['passes']:.1f} prompts each",
        f"{share['telling']:.0%} into telling clients".replace("%", " %"),
        f"{share['waiting for the device']:.0%} is waiting for the device".replace("%", " %"),
        f"made {before['tokens_per_second']:.0f} tokens per second",
        f"that is {many['tokens_per_second'] / before['tokens_per_second']:.1f} times less.",
    ):
        assert sentence in said, sentence
    assert f"{100 * whole / steps:.0f} % of the bare loop's steps alone" in text("benchmarks/speed.md")


def test_the_peer_on_a_cpu() -> None:
    found = result("server/results/peer_cpu.json")
    rounds = [
        side for clients in (1, 8) for each in found[f"clients: {clients}"]["rounds"] for side in each.values()
    ]
    assert found["that_differ"] == 0
    assert not [each for each in rounds if each["answers_that_differ_from_the_single_answer"]]
    one, eight = (
        {what.split(",")[0]: each for what, each in found[f"clients: {clients}"].items() if what != "rounds"}
        for clients in (1, 8)
    )

    def said(each: dict[str, float], places: int) -> str:
        return f"{each['median']:.{places}f} ({each['low']:.{places}f} to {each['high']:.{places}f})"

    time, tokens = "processor_ms_per_token", "tokens_per_second"
    page_ = text("docs/speed.md")
    assert f"All {found['answers_alone']} greedy answers are the same." in page_
    assert (
        f"{said(one[time], 2)} of the processor time with one client and {said(eight[time], 2)} with eight"
        in page_
    )
    assert f"{said(one[tokens], 2)} and {said(eight[tokens], 1)} times as many" in page_
    short = f"needs {one[time]['median']:.2f} of its processor time per token with one client"
    assert f"{short} and {eight[time]['median']:.2f} with eight" in text("benchmarks/speed.md")


def test_processors() -> None:
    walls = {way: f"{told['wall']:.1f}" for way, told in result(goals.DESCRIBE)["median"].items()}
    spinning = walls["spinning"].split(".")[0]
    assert f"`describe` takes {walls['default']} s, and {spinning} with torch's own default" in text(
        "docs/speed.md"
    )
    demo = {
        name: result(f"speed/results/cpu-demo-{name}.json")["median"]["default"]["wall"]
        for name in ("own", "busy")
    }
    said = text("benchmarks/speed.md")
    assert f"takes {demo['own']:.1f} s in the environment" in said and f"it takes {demo['busy']:.1f} s" in said


def test_what_each_part_is_worth() -> None:
    found = result("speed/results/h200-without.json")
    (whole,) = re.findall(r"([\d.]+) replayed", found["note"])
    more = {row["way"].removeprefix("graph-"): row["replay ms"] - float(whole) for row in found["rows"]}
    said = text("benchmarks/speed.md")
    assert f"which takes {float(whole):.2f}, is longer" in said
    for what, part in (("norms", "norms"), ("rotary embedding", "rotary"), ("cache writes", "cache")):
        assert f"{what} in one kernel {more[part]:.2f}" in said
    assert f"in one kernel gain little, {more['gated']:.2f}" in said


def test_where_the_demonstration_s_time_goes() -> None:
    _, imports, model, prompt, *_, answered, page_, _ = result("speed/results/cpu-beside.json")[
        "timeline"
    ].values()
    spent = (imports, model - imports, prompt - model, answered - prompt, page_ - answered)
    (table,) = re.findall(r"where the time goes \(.*?(?=What made)", text("benchmarks/speed.md"))
    assert table.startswith(f"where the time goes ({page_} s,")
    assert re.findall(r"\| ([\d.]+) \|", table) == [f"{seconds:.1f}" for seconds in spent]


def test_answers_of_both_ways() -> None:
    said = text("docs/speed.md")
    runs = [run for name in goals.WAYS.values() for run in result(name)["runs"]]
    count = {
        dtype: sum(run["answers"] for run in runs if run["dtype"] == dtype) for dtype in ("float32", "bfloat16")
    }
    different = {d: sum(run["different"] for run in runs if run["dtype"] == d) for d in count}
    assert different["float32"] == 0 and all(run["different"] == run["decided_by_rounding"] for run in runs)
    assert f"none of {count['float32']} answers differed" in said
    assert f"{different['bfloat16']} of {count['bfloat16']}" in said
    photo = {
        run["method"]: run["largest_rounding"]
        for run in result("runs/ways-photo.json")["runs"]
        if run["dtype"] == "bfloat16"
    }
    assert (
        "by up to {regular:.2f} between the two ways in bfloat16, with VCD {vcd:.2f}, with CAI {cai:.2f}".format(
            **photo
        )
        in said
    )


def test_questions_per_second() -> None:
    found = result("runs/throughput.json")
    engine, plain = (found["samples_per_second"][way] for way in ("engine", "plain"))
    said = text("docs/runs.md")
    assert f"{engine:.0f} questions a second against {plain:.0f} in a plain loop" in said
    assert f"the same answers to all {found['questions']} questions" in said and not found["differing_answers"]
