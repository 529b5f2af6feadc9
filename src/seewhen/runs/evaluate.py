"""`seewhen eval` as a function: a benchmark, a model, methods and their controls, one directory each."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seewhen.asking.options import check_possible
from seewhen.backbones.hub import where_found
from seewhen.backbones.loading import check_name, load_config, quantization_library, resolve
from seewhen.benchmarks import SCENES, benchmark_class
from seewhen.benchmarks import check as check_benchmark
from seewhen.benchmarks import load as load_benchmark
from seewhen.benchmarks.base import Benchmark, Sample, check_samples, content_checksum
from seewhen.benchmarks.files import picture_names
from seewhen.benchmarks.prompts import Style, style_named
from seewhen.errors import InvalidInput, UnsupportedMode
from seewhen.runs.cutting import write_cuts
from seewhen.runs.engine import InProcess, Plan, Pool, Processes, run
from seewhen.runs.pictures import scene_source
from seewhen.runs.scoring import result_of, score_records, write_counts
from seewhen.runs.store import Record, RunStore
from seewhen.runs.versions import package_versions, plugin_versions, processor_name
from seewhen.runs.work import Maker, Task, image_order
from seewhen.served.server import KEY

if TYPE_CHECKING:
    from seewhen.decoding.method import Method

_TOKENS_IF_UNSAID = 128


@dataclass(frozen=True)
class Ask:
    """What is asked, of whom, and how: everything but the method."""

    benchmark: str
    data: str = SCENES
    split: str | None = None
    style: str | None = None
    parser: str | None = None
    lemmatizer: str | None = None
    similarity: str | None = None
    image_list: str | None = None
    images: str | None = None  # folder of the pictures; the data folder unless said
    scenes: int = 500
    limit: int | None = None
    seeds: int | None = None  # None is greedy; 5 is sampling with seeds 0 to 4
    temperature: float = 1.0
    noise: str = "streams"  # of sampling; or "hash"
    max_new_tokens: int | None = None
    model: str = "packaged"
    revision: str | None = None
    dtype: str = "auto"
    attention: str | None = None
    device_map: str | None = None
    quantization: str | None = None
    adapter: str | None = None
    batch: int = 24
    fast: bool = False  # captured decoding where it applies
    server: str | None = None  # an OpenAI-compatible server that has the model
    key_from: str = KEY  # environment variable with its key
    at_once: int = 16  # answers of a server
    request: Mapping[str, Any] = field(default_factory=dict, hash=False)  # goes along with every request to it

    def __post_init__(self) -> None:
        for name in ("scenes", "limit", "seeds", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name}={value} asks for nothing.", "Give 1 or more, or leave it out.")
        check_possible(temperature=self.temperature)
        if self.noise not in ("streams", "hash"):
            raise InvalidInput(f"There is no noise {self.noise!r}.", "Use streams or hash.")

    def check(self) -> None:
        """Refuse what cannot be asked, before anything heavy is imported or read for it."""
        check_benchmark(self.benchmark, self.data, self.split)
        if self.style is not None:
            style_named(benchmark_class(self.benchmark).styles, self.style)
        if self.images is not None and not Path(self.images).expanduser().is_dir():
            raise InvalidInput(f"There is no folder {self.images}.", "Name that of the pictures.")
        if self.server is None:
            check_name(self.model, self.revision)

    @property
    def sampled(self) -> bool:
        return self.seeds is not None

    def load(self) -> Benchmark:
        return load_benchmark(
            self.benchmark,
            self.data,
            split=self.split,
            parser=self.parser,
            lemmatizer=self.lemmatizer,
            similarity=self.similarity,
            image_list=self.image_list,
            scenes=self.scenes,
        )

    def loading(self) -> dict[str, Any]:
        """For `seewhen.load`, beside the name and the device; only what was given."""
        names = ("dtype", "revision", "device_map", "quantization", "adapter")
        given = {name: getattr(self, name) for name in names} | {"attn_implementation": self.attention}
        return {name: value for name, value in given.items() if value is not None}

    def served(self) -> dict[str, Any]:
        """For those who ask a server."""
        names = ("server", "model", "key_from", "at_once", "request")
        return {name: getattr(self, name) for name in names}

    def style_of(self, benchmark: Benchmark) -> tuple[str, Style]:
        name = self.style or benchmark.default_style
        return name, style_named(benchmark.styles, name)

    def tokens(self, benchmark: Benchmark) -> int:
        return self.max_new_tokens or self.style_of(benchmark)[1].max_new_tokens or _TOKENS_IF_UNSAID


@dataclass(frozen=True)
class Machine:
    """Who computes: this process, several devices of this machine, or a Ray cluster."""

    engine: str = "local"
    devices: Sequence[str] = ()
    workers: int | None = None
    ray_address: str | None = None

    def __post_init__(self) -> None:
        if self.engine not in ("local", "ray"):
            raise InvalidInput(f"There is no engine {self.engine!r}.", "Use local or ray.")

    def pool(self, maker: Maker, sampled: bool) -> Pool:
        if self.engine == "ray":
            from seewhen.runs.ray_engine import RayPool

            return RayPool(maker, sampled, self.ray_address, self.workers)
        if len(self.devices) > 1:
            return Processes(maker, sampled, self.devices)
        if self.devices:
            maker = replace(maker, options={**maker.options, "device": self.devices[0]})
        return InProcess(maker, sampled)

    @property
    def device(self) -> str:
        """The kind of device, cpu or cuda: part of a run's configuration."""
        if self.devices:
            return self.devices[0].split(":")[0]
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"


def make_tasks(ask: Ask, benchmark: Benchmark, samples: Sequence[Sample]) -> list[Task]:
    """Tasks in the order in which they run: those of one image together."""
    style, _ = ask.style_of(benchmark)
    sources = _sources(ask, benchmark, samples)
    tasks = image_order(
        Task(sample.id, sample.image, sources[sample.id], benchmark.prompt(sample, style)) for sample in samples
    )
    return tasks[: ask.limit]


def _sources(ask: Ask, benchmark: Benchmark, samples: Sequence[Sample]) -> dict[str, str]:
    if ask.data == SCENES:
        return {sample.id: scene_source(sample.image) for sample in samples}
    folder = Path(ask.images or ask.data)
    found: dict[tuple[str, str], str] = {}  # looked for once, however many questions there are
    first_error: InvalidInput | None = None
    for sample in {(s.image, s.split): s for s in samples}.values():
        try:
            found[sample.image, sample.split] = str(benchmark.picture(sample, folder))
        except InvalidInput as error:
            first_error = first_error or error
    if not found and first_error:
        pictures = len({sample.image for sample in samples})
        raise InvalidInput(f"Not one of the {pictures} pictures is there. {first_error.message}", first_error.hint)
    # A picture that alone is missing becomes a recorded failure, not the end of the run.
    return {s.id: found.get((s.image, s.split), str(folder / picture_names(s.image)[0])) for s in samples}


def model_facts(ask: Ask, device: str) -> dict[str, Any]:
    """Which model exactly, and in which precision, without loading its weights."""
    if ask.server is not None:
        # Not its address: a model that moves, or has several, is the same model.
        extras = {"request": dict(ask.request)} if ask.request else {}
        return {"name": ask.model, "dtype": "unknown", "device": "server", **extras}
    path = Path(resolve(ask.model))
    facts: dict[str, Any] = {"name": ask.model}
    config = load_config(ask.model, revision=ask.revision)
    if path.is_dir():
        facts["weights"] = directory_fingerprint(path)
    else:
        facts["revision"] = getattr(config, "_commit_hash", None) or ask.revision
    kept = getattr(config, "dtype", None)
    if ask.dtype != "auto":
        facts["dtype"] = ask.dtype
    else:
        facts["dtype"] = "float32" if device == "cpu" else str(kept or "float32").removeprefix("torch.")
    facts["attention"] = ask.attention or "sdpa"
    facts["device"] = device
    # Only where given, so that runs made before these options existed can be taken up again.
    if ask.device_map:
        facts["device_map"] = ask.device_map
    if ask.quantization:
        facts["quantization"] = {"bits": ask.quantization, **quantization_library(ask.quantization)}
    if ask.adapter:
        facts["adapter"] = {"name": ask.adapter, **_adapter_facts(ask.adapter)}
    return facts


def _adapter_facts(name: str) -> dict[str, Any]:
    if Path(name).is_dir():
        return {"weights": directory_fingerprint(Path(name))}
    from transformers.utils import cached_file
    from transformers.utils.hub import extract_commit_hash

    try:
        config = cached_file(name, "adapter_config.json", **where_found(name, {}))
    except OSError as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise InvalidInput(
            f"The adapter {name} cannot be loaded: {reason}", "Give a hub id or a directory."
        ) from None
    return {"revision": extract_commit_hash(config, None)}


def directory_fingerprint(path: Path) -> str:
    """Changes when a file of a checkpoint changes (not its model card): names, sizes, content, of large
    files both ends."""
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if not file.is_file() or file.name.startswith(".") or file.suffix in (".md", ".png", ".jpg"):
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}\t{size}\n".encode())
        with open(file, "rb") as stream:
            digest.update(stream.read(1 << 24))
            if size > 1 << 24:
                stream.seek(max(1 << 24, size - (1 << 20)))
                digest.update(stream.read())
    return digest.hexdigest()[:16]


def image_backend() -> str:
    """Processors resize with torchvision where it is installed; pixels then differ slightly."""
    from importlib.util import find_spec

    return "torchvision" if find_spec("torchvision") else "pillow"


def configuration(
    ask: Ask, benchmark: Benchmark, samples: Sequence[Sample], model: Mapping[str, Any], method: Method
) -> dict[str, Any]:
    """What must stay the same for two answers to belong to one run."""
    from seewhen.methods.grammar import label

    style, _ = ask.style_of(benchmark)
    prompts = "\n".join(benchmark.prompt(sample, style) for sample in samples)
    return {
        "benchmark": {
            "name": benchmark.name,
            "data": "scenes" if ask.data == SCENES else "files",
            "split": ask.split,
            "settings": dict(benchmark.settings),
            "questions": content_checksum(samples),
            "style": style,
            "prompts": hashlib.sha256(prompts.encode()).hexdigest(),
            "first_prompt": benchmark.prompt(samples[0], style),
        },
        "model": dict(model),
        "method": {"label": label(method), "fingerprint": method.fingerprint, **method.to_json()},
        "decoding": {
            "mode": "sample" if ask.sampled else "greedy",
            "temperature": ask.temperature if ask.sampled else None,
            "max_new_tokens": ask.tokens(benchmark),
            # Each makes another run. Left out when not used: runs made before they existed go on.
            **({"fast": True} if ask.fast else {}),
            **({"noise": ask.noise} if ask.sampled and ask.noise != "streams" else {}),
        },
        "image_backend": image_backend(),
        "versions": {**package_versions(), **plugin_versions(benchmark.name, method.to_json())},
    }


def environment(ask: Ask, machine: Machine) -> dict[str, Any]:
    """What may change between two starts, kept for the reader."""
    import torch

    return {
        **({} if ask.server is None else {"server": ask.server}),
        "engine": machine.engine,
        "batch": ask.batch,
        "python": platform.python_version(),
        "system": platform.system(),
        "device_name": torch.cuda.get_device_name() if torch.cuda.is_available() else processor_name(),
        "threads": torch.get_num_threads(),
    }


def run_name(config: Mapping[str, Any]) -> str:
    """A directory name that a person can read and two configurations never share."""
    benchmark, model = config["benchmark"], config["model"]
    whole = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:6]
    pieces = [
        benchmark["name"],
        (benchmark["split"] or "all").replace(",", "-"),
        Path(str(model["name"])).name,
        config["method"]["label"][:80],
        config["decoding"]["mode"],
        whole,
    ]
    return "_".join("".join(c if c.isalnum() or c in "-.+" else "-" for c in piece) for piece in pieces)


def evaluate(
    ask: Ask,
    method: Method,
    out: Path,
    machine: Machine | None = None,
    *,
    directory: Path | None = None,
    retry_failed: bool = False,
    keep: frozenset[str] | None = None,
    prepared: tuple[Benchmark, Mapping[str, Any]] | None = None,
) -> tuple[Path, Mapping[str, Any]]:
    """One method on one benchmark: goes on where it was. Returns the directory and the result.

    `keep` restricts to some images (a sweep tunes on some and reports on others); `prepared` is a loaded
    benchmark with the model's facts, to save loading them for every method.
    """
    check_mode(ask, method)
    machine = machine or Machine()
    benchmark, model = prepared or (ask.load(), model_facts(ask, machine.device))
    samples = [s for s in benchmark.samples() if keep is None or s.image in keep]
    check_samples(benchmark.name, samples)
    tasks = make_tasks(ask, benchmark, samples)
    config = configuration(ask, benchmark, samples, model, method)
    path = directory or out / run_name(config)
    seeds = tuple(range(ask.seeds or 1))

    def result(records: Sequence[Record]) -> Mapping[str, Any]:
        scored = score_records(benchmark, records, seeds)
        write_counts(path, scored)
        if config["method"]["label"] == "regular":
            write_cuts(path, benchmark, records, seeds)
        found = result_of(benchmark, scored, records)
        if ask.server is None:
            return found
        from seewhen.runs.served import total

        return {**found, "cost": total(records)}

    pool, batch = pool_of(ask, benchmark, method, machine)
    with RunStore.open(path, config, environment(ask, machine)) as store:
        if retry_failed:
            store.forget_failures()
        title = f"{benchmark.name} {config['method']['label']} {config['decoding']['mode']}"
        return path, run(store, Plan(tasks, seeds, batch), pool, result, title)


def pool_of(ask: Ask, benchmark: Benchmark, method: Method, machine: Machine) -> tuple[Pool, int]:
    """Who answers the questions of a benchmark, and how many go together."""
    raw = ask.style_of(benchmark)[1].wrapper is not None
    if ask.server is not None and raw:
        raise UnsupportedMode("This prompt style writes the whole prompt, which a server does itself.")
    here = {"raw_prompt": raw, "noise": ask.noise, "fast": "auto" if ask.fast else "off"}
    return answering(ask, method, machine, ask.tokens(benchmark), **here)


def answering(ask: Ask, method: Method, machine: Machine, tokens: int, **here: Any) -> tuple[Pool, int]:
    """Who answers with a method, and how many tasks go together. A server batches by itself: each task goes alone.
    `here` is for a model of this machine."""
    options = {"method": method.to_json(), "max_new_tokens": tokens, "temperature": ask.temperature}
    if ask.server is not None:
        from seewhen.runs.served import Threads
        from seewhen.served.remote import check_served

        check_served(method)
        maker = Maker("seewhen.runs.served:ServedAnswerer", {**options, **ask.served()})
        return Threads(maker, ask.sampled, ask.at_once), 1
    options |= {"model": ask.model, "loading": ask.loading(), **here}
    return machine.pool(Maker("seewhen.runs.model_answerer:ModelAnswerer", options), ask.sampled), ask.batch


def check_mode(ask: Ask, method: Method) -> None:
    """Refuse greedy runs of a method that samples, and sampled runs of a beam search."""
    if method.samples_only and not ask.sampled:
        raise UnsupportedMode(f"{method.name} only samples.", "Give it --seeds.")
    if method.beams_only and ask.sampled:
        raise UnsupportedMode(f"{method.name} is a beam search and does not sample.", "Leave --seeds out.")
