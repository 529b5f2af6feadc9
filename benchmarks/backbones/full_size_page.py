"""The results of full_size.py as a page."""

from __future__ import annotations

from typing import Any


def as_markdown(results: dict[str, Any]) -> str:
    about = results["about"]
    lines = [
        "# The paper's four backbones at full size",
        "",
        f"{about['device']}, {about['dtype']}, random weights, batch 1, greedy, {about['tokens']} tokens, "
        "`generate` in transformers' own loop (growing cache, SDPA without cuDNN, no compilation) "
        'and as a captured step (`fast="graph"`).',
        f"seewhen {about['seewhen']}, torch {about['torch']}, transformers {about['transformers']}, "
        f"Python {about['python']}. `{about['command']}` ({about['seconds']} s).",
        "",
        "| backbone | parameters | image / prompt tokens | checkpoint | saved | loaded | after loading |"
        " closed gate and stock |",
        "|---|---|---|---|---|---|---|---|",
    ]
    entries = {name: e for name, e in results["backbones"].items() if "parameters" in e}
    for name, e in entries.items():
        size = f"{e['parameters'] / 1e9:.2f} B, {e['weights_gib']:.1f} GiB"
        disk = f"{e['checkpoint_gb']} GB | {e['save_s']} s | {e['load_s']} s" if "load_s" in e else "- | - | -"
        loaded = [f"{k} {e[f'{k}_after_loading']}" for k in ("weights", "logits") if f"{k}_after_loading" in e]
        tail = f"{', '.join(loaded) or '-'} | {e.get('closed_gate', '-')}"
        lines.append(f"| {name} | {size} | {e['image_tokens']} / {e['prompt_tokens']} | {disk} | {tail} |")
    lines += [
        "",
        "Milliseconds per token after the first: transformers' loop / captured step (peak GiB of each):",
        "",
    ]
    lines += ["| method | " + " | ".join(entries) + " |", "|---|" + "---|" * len(entries)]
    for title in next(iter(entries.values()))["methods"]:
        cells = [_cell(e["methods"].get(title)) for e in entries.values()]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    compiled = {name: e["compiled"] for name, e in results["backbones"].items() if "compiled" in e}
    if compiled:
        lines += [
            "",
            "Compiled decoding (static cache) against eager, CAI with contrast and every gate open, float32, "
            "reduced depth:",
            "",
            "| backbone | layers | tokens | gates | largest logit difference | largest logit |",
            "|---|---|---|---|---|---|",
        ]
        for name, c in compiled.items():
            numbers = f"{c['largest_logit_difference']:.1e} | {c['largest_logit']:.2f}"
            lines.append(f"| {name} | {c['layers']} | {c['tokens']} | {c['gates']} | {numbers} |")
    for title, key in (("Left out", "left_out"), ("Failures", "failures")):
        if results[key]:
            lines += ["", f"{title}: {'; '.join(results[key])}."]
    return "\n".join(lines) + "\n"


def _cell(measured: dict[str, Any] | None) -> str:
    if measured is None:
        return "-"
    if "error" in measured:
        return "failed"
    graph = measured["graph"]
    memory = f" ({measured['peak_gib']} / {graph['peak_gib']})" if "peak_gib" in measured else ""
    return f"{measured['ms_per_token']} / {graph['ms_per_token']}{memory}"
