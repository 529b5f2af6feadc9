"""A process that does tasks: reads their names from standard input, answers with a line for each.

Started by `python -m ladder`.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path


def main() -> None:
    """Until the input ends."""
    folder, sizes = Path(sys.argv[1]), sys.argv[2]
    answers = sys.stdout
    sys.stdout = sys.stderr  # what others print goes to the log
    import torch

    from ladder.rungs import SIZES
    from ladder.tasks import all_tasks
    from ladder.training import Bench

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    tasks = {task.name: task for task in all_tasks(Bench(folder, SIZES[sizes], device))}
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        name = line.strip()
        began = time.monotonic()
        try:
            tasks[name].run()
            said = "done"
        except Exception:
            print(f"{name}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            said = "failed"
        if device == "cuda":
            torch.cuda.empty_cache()  # others need the memory
        print(f"{said}\t{name}\t{time.monotonic() - began:.1f}", file=answers, flush=True)
        if said == "failed":
            sys.exit(1)  # a GPU's error stays with the process it came up in


if __name__ == "__main__":
    main()
