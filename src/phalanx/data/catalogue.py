"""List the built-in data sets: file names, download locations, checksums, sizes.

Plain facts. `directory` uses them to find files, `fetch` to download and verify, the command
`phalanx data list` to show them. Sources decode the files.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """One file that `fetch` can download."""

    name: str
    sha256: str
    of_contents: bool
    """True: `sha256` is that of the unpacked contents, so a copy that was packed anew passes too;
    False: of the file as published."""
    size_bytes: int
    """Size as published, for tables and for a progress bar when the server does not tell."""


@dataclass(frozen=True)
class Entry:
    """A built-in data set."""

    name: str
    title: str
    kind: str
    """Layout of its files: embedded, idx or cifar."""
    shape: tuple[int, ...]
    num_train: int
    num_test: int
    mirrors: tuple[str, ...] = ()
    """URLs to download from, tried in this order."""
    files: tuple[RemoteFile, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders of the files under a data directory, besides the directory itself."""

    @property
    def needs_files(self) -> bool:
        """Whether it has files to fetch; otherwise it is embedded."""
        return bool(self.files)


def _mnist_like(
    name: str,
    title: str,
    *,
    folder: str,
    mirrors: tuple[str, ...],
    digests: tuple[str, ...],
    sizes: tuple[int, ...],
    of_contents: bool = True,
) -> Entry:
    """Describe a data set in the four files of MNIST: images and labels, for training and test."""
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return Entry(
        name=name,
        title=title,
        kind="idx",
        shape=(28, 28, 1),
        num_train=60_000,
        num_test=10_000,
        mirrors=mirrors,
        files=tuple(
            RemoteFile(f"{stem}-ubyte.gz", digest, of_contents=of_contents, size_bytes=size)
            for stem, digest, size in zip(stems, digests, sizes, strict=True)
        ),
        folders=(name, f"{folder}/raw"),
    )


_ENTRIES = (
    Entry(
        name="digits",
        title="handwritten digits of scikit-learn",
        kind="embedded",
        shape=(8, 8, 1),
        num_train=1438,
        num_test=359,
    ),
    _mnist_like(
        "mnist",
        "handwritten digits",
        folder="MNIST",
        # The author's own page no longer serves the files; these two hold the same bytes.
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        digests=(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        sizes=(9_912_422, 28_881, 1_648_877, 4_542),
    ),
    _mnist_like(
        "fashion-mnist",
        "articles of clothing",
        folder="FashionMNIST",
        mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        digests=(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        sizes=(26_421_880, 29_515, 4_422_102, 5_148),
    ),
    _mnist_like(
        "kmnist",
        "cursive Japanese characters",
        folder="KMNIST",
        mirrors=("https://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        # Only the digests of the packed files are published, so they hold for downloads alone; a
        # copy from a directory is checked by gzip's own checksum and by the counts in the header.
        of_contents=False,
        digests=(
            "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
            "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
            "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
        ),
        sizes=(18_165_135, 29_497, 3_041_136, 5_120),
    ),
    Entry(
        name="cifar10",
        title="small colour photographs",
        kind="cifar",
        shape=(32, 32, 3),
        num_train=50_000,
        num_test=10_000,
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        files=(
            RemoteFile(
                name="cifar-10-python.tar.gz",
                sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                of_contents=False,
                size_bytes=170_498_071,
            ),
        ),
        # The last two are how a Hugging Face download of the Parquet export is laid out.
        folders=("cifar10", "cifar10/plain_text", "cifar10/data"),
    ),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
