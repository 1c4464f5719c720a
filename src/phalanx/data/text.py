"""Cut a text into blocks of tokens, for language models: each token's target is the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from phalanx.data.base import FileSource, PartName, Samples
from phalanx.errors import DataError, SpecError
from phalanx.spec.data_files import TextSettings
from phalanx.spec.loss import IGNORED
from phalanx.spec.registry import load

_BYTES = "bytes"


class TextSource(FileSource):
    """A text file, in UTF-8 unless its tokens are bytes."""

    parts = ("train",)
    is_one_file = True

    def __init__(self, path: Path, settings: TextSettings) -> None:
        self._path = path
        self._settings = settings
        super().__init__(path.stem, path, (path,), decoder=f"text-1 {settings.model_dump_json()}")
        self.num_classes = 256 if settings.tokenizer == _BYTES else self._vocabulary_size

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        tokens = self._tokens()
        if len(tokens) < 2:
            raise DataError(f"{self._path} has fewer than two tokens", path=self._path)
        block = self._settings.block
        count = -(-(len(tokens) - 1) // block)
        inputs = np.zeros(count * block, dtype=np.int32)
        targets = np.full(count * block, IGNORED, dtype=np.int64)
        inputs[: len(tokens) - 1] = tokens[:-1]
        targets[: len(tokens) - 1] = tokens[1:]
        yield Samples(inputs=inputs.reshape(count, block), targets=targets.reshape(count, block))

    def _tokens(self) -> npt.NDArray[np.int64]:
        raw = self._path.read_bytes()
        if self._settings.tokenizer == _BYTES:
            return np.frombuffer(raw, dtype=np.uint8).astype(np.int64)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self._path} is not UTF-8 at byte {error.start}; convert it, or use the "
                "tokenizer 'bytes'",
                path=self._path,
            ) from error
        name, encode = self._settings.tokenizer, self._encoder
        try:
            found = np.asarray(encode(text))
        except Exception as error:  # the user's code may raise anything; the cause stays attached
            raise SpecError(f"tokenizer '{name}' raised {type(error).__name__}: {error}") from error
        if found.ndim != 1 or found.dtype.kind not in "ui" or found.min(initial=0) < 0:
            raise SpecError(
                f"tokenizer '{name}' returned {found.dtype} of shape {found.shape}; it must return "
                "a row of whole numbers from 0 on"
            )
        return found.astype(np.int64)

    @cached_property
    def _tokenizer(self) -> object:
        found = load(self._settings.tokenizer)
        return found() if isinstance(found, type) else found

    @property
    def _encoder(self) -> Callable[[str], Any]:
        encode = getattr(self._tokenizer, "encode", self._tokenizer)
        if not callable(encode):
            raise SpecError(
                f"tokenizer '{self._settings.tokenizer}' is {type(encode).__name__}; it must be a "
                "function of a text, or have a method 'encode'"
            )
        return cast("Callable[[str], Any]", encode)

    @property
    def _vocabulary_size(self) -> int | None:
        """Tokens that the tokenizer knows, if it says so; None: as many as occur."""
        for name in ("vocab_size", "n_vocab"):
            size = getattr(self._tokenizer, name, None)
            if isinstance(size, int):
                return size
        return None
