"""The Qwen (v1) tokenizer as a fast tokenizer, built from the published `qwen.tiktoken` vocabulary file.

The file lists byte strings (base64) with their ranks and no merges. A byte-pair encoder needs merges, one per
token: the last pair that is joined when the token's own bytes are encoded with lower ranks only. (Inside a
longer word the same pair is joined last, since merges that cross the token's border would prevent it.) A token
that only tokens of higher rank could build is never built; training, which joins what is there, makes none.
The class carries the published name, so the published `tokenizer_config.json` leads to it.
"""

from __future__ import annotations

import base64
import binascii
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from seewhen.atomic import write
from seewhen.errors import InvalidInput

VOCABULARY_FILE = "qwen.tiktoken"
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IMAGE_START, IMAGE_END, IMAGE_PAD = "<img>", "</img>", "<imgpad>"
# In the published order: their ids follow the vocabulary without a gap (151643 ... 151859).
SPECIAL_TOKENS = (
    END_OF_TEXT,
    TURN_START,
    TURN_END,
    *(f"<|extra_{i}|>" for i in range(205)),
    *("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>"),
    IMAGE_START,
    IMAGE_END,
    IMAGE_PAD,
)
# How text is cut into words before bytes are joined: contractions, letters, single digits, signs, blanks.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_ranks(path: str | Path) -> dict[bytes, int]:
    """Read a `tiktoken` file: one `base64-of-bytes rank` pair per line."""
    try:
        lines = Path(path).read_bytes().splitlines()
        pairs = (line.split() for line in lines if line)
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except (OSError, ValueError, binascii.Error) as error:
        raise InvalidInput(
            f"Cannot read the vocabulary file {path}: {error}.", f"Expected the published {VOCABULARY_FILE}."
        ) from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise InvalidInput(
            f"The ranks in {path} are not 0 to {len(ranks) - 1} without a gap.", "The file seems incomplete."
        )
    return ranks


def _last_pair(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two pieces left when `token` is encoded with tokens of lower rank; None if it cannot be reached."""
    pieces = [token[i : i + 1] for i in range(len(token))]
    limit = ranks[token]
    while len(pieces) > 2:
        joined = [ranks.get(left + right, limit) for left, right in pairwise(pieces)]
        best = min(joined)
        if best >= limit:
            return None
        at = joined.index(best)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return (pieces[0], pieces[1]) if len(pieces) == 2 else None


def vocabulary_and_merges(ranks: dict[bytes, int]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The same tokens in the printable alphabet of byte-level BPE, and the merges in order of rank."""
    letters = bytes_to_unicode()

    def text(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        if pair := _last_pair(token, ranks):
            merges.append((text(pair[0]), text(pair[1])))
    return {text(token): rank for token, rank in ranks.items()}, merges


class QWenTokenizer(PreTrainedTokenizerFast):
    vocab_files_names = {"vocab_file": VOCABULARY_FILE, "tokenizer_file": "tokenizer.json"}  # noqa: RUF012
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012
    model = BPE

    def __init__(
        self,
        vocab: str | dict[str, int] | None = None,
        merges: list[tuple[str, str]] | None = None,
        vocab_file: str | None = None,
        eos_token: str = END_OF_TEXT,
        pad_token: str = END_OF_TEXT,
        padding_side: str = "left",
        **kwargs: Any,
    ) -> None:
        """`vocab` is the path of a tiktoken file, or with `merges` what a saved `tokenizer.json` holds."""
        if not isinstance(vocab, dict):
            path = vocab or vocab_file
            if path is None:
                raise InvalidInput(
                    f"No vocabulary: neither {VOCABULARY_FILE} nor tokenizer.json was found.",
                    "Give the directory of a Qwen-VL checkpoint.",
                )
            vocab, merges = vocabulary_and_merges(read_ranks(path))
        # A word that is itself a token is taken whole, as in the published encoder.
        self._tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges or [], ignore_merges=True))
        self._tokenizer.normalizer = normalizers.NFC()
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
        )
        kwargs.pop("errors", None)  # a published option of the Python decoder; invalid bytes become U+FFFD here
        super().__init__(eos_token=eos_token, pad_token=pad_token, padding_side=padding_side, **kwargs)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str]:
        """Write the vocabulary back in the published file format."""
        octets = {letter: byte for byte, letter in bytes_to_unicode().items()}
        special = set(SPECIAL_TOKENS)
        ranked = sorted((rank, token) for token, rank in self.get_vocab().items() if token not in special)
        lines = (
            f"{base64.b64encode(bytes(octets[letter] for letter in token)).decode()} {rank}\n"
            for rank, token in ranked
        )
        name = f"{filename_prefix}-{VOCABULARY_FILE}" if filename_prefix else VOCABULARY_FILE
        path = Path(save_directory) / name
        write(path, "".join(lines))
        return (str(path),)
