"""Read a folder of images: one folder per class, maybe below folders for the parts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from typing_extensions import override

from phalanx.data.base import FileSource, PartName, Samples
from phalanx.data.parquet import decode_images
from phalanx.errors import DataError
from phalanx.spec.data_files import ImageFolderSettings

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_PARTS: dict[PartName, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_CHUNK = 512
_MODES = {"auto": None, "grey": "L", "rgb": "RGB"}


def image_files(folder: Path) -> tuple[Path, ...]:
    """Return all images below a folder, in order."""
    return tuple(sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES))


class ImageFolderSource(FileSource):
    """Images whose class is the folder that they lie in."""

    is_one_file = True

    def __init__(self, folder: Path, settings: ImageFolderSettings) -> None:
        self._folder = folder
        self._settings = settings
        self._mode = _MODES[settings.colour]
        self._roots = self._find_parts()
        self.parts = tuple(self._roots)
        if "validation" in self.parts:
            self.test_share = 0.0
        files = image_files(folder)
        decoder = f"images-1 {settings.model_dump_json()}"
        super().__init__(folder.name, folder, files, decoder=decoder)
        classes = {path.parent.name for root in self._roots.values() for path in image_files(root)}
        self.class_names = tuple(sorted(classes))
        self.num_classes = len(self.class_names)

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        root = self._roots[part]
        files = image_files(root)
        stray = next((path for path in files if path.parent.parent != root), None)
        if stray is not None:
            raise DataError(
                f"{stray} is not in a folder of its class directly below {root}; arrange images as "
                "FOLDER/CLASS/IMAGE or FOLDER/train/CLASS/IMAGE",
                path=stray,
            )
        numbers = {name: number for number, name in enumerate(self.class_names)}
        for start in range(0, len(files), _CHUNK):
            chosen = files[start : start + _CHUNK]
            images, self._mode = decode_images(
                [self._read(path) for path in chosen], origin=str(root), mode=self._mode
            )
            labels = np.array([numbers[path.parent.name] for path in chosen], dtype=np.int64)
            yield Samples(inputs=images, targets=labels)

    def _find_parts(self) -> dict[PartName, Path]:
        found: dict[PartName, Path] = {}
        for part, names in _PARTS.items():
            roots = (self._folder / name for name in names)
            present = [root for root in roots if root.is_dir()]
            if present:
                found[part] = present[0]
        if not found:
            return {"train": self._folder}
        if "train" not in found:
            raise DataError(
                f"{self._folder} has {', '.join(one.name for one in found.values())} but no folder "
                "'train'",
                path=self._folder,
            )
        return found

    def _read(self, path: Path) -> bytes:
        data = path.read_bytes()
        if self._settings.size is None:
            return data
        from PIL import Image, UnidentifiedImageError

        height, width = self._settings.size
        try:
            with Image.open(io.BytesIO(data)) as image:
                scaled = image.resize((width, height), Image.Resampling.BILINEAR)
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{path} is no image that can be read", path=path) from error
        written = io.BytesIO()
        scaled.save(written, format="PNG")
        return written.getvalue()
