"""A user's own network, right and wrong in every way."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from phalanx.errors import SpecError
from phalanx.model.catalogue import build_model
from phalanx.spec.model import UserModelSpec

SOURCE = """
import math
from torch import nn

answer = 42

def plain():
    return nn.Linear(4, 3)

def sized(num_classes, input_shape, width=5):
    return nn.Sequential(
        nn.Linear(math.prod(input_shape), width), nn.Linear(width, num_classes)
    )

def anything(**settings):
    return nn.Linear(settings["input_shape"][0], settings["num_classes"])

def broken():
    raise KeyError("no such layer")

def wrong_kind():
    return [1, 2]

class Own(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(4, num_classes)
"""


@pytest.fixture
def user_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "user_nets.py").write_text(SOURCE)
    (tmp_path / "needs_missing.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "bad_syntax.py").write_text("def net(:\n")
    package = tmp_path / "user_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("user_nets", "needs_missing", "bad_syntax", "user_package"):
            del sys.modules[name]


def build(name: str, **args: object) -> nn.Module:
    spec = UserModelSpec.model_validate({"name": name, "args": args})
    return build_model(spec, input_shape=(4,), num_classes=3, seed=1)


@pytest.mark.usefixtures("user_directory")
def test_sizes_are_passed_only_where_they_are_taken() -> None:
    assert isinstance(build("user_nets:plain"), nn.Linear)
    sized = build("user_nets:sized", width=9)
    assert [tuple(p.shape) for p in sized.parameters()] == [(9, 4), (9,), (3, 9), (3,)]
    assert tuple(build("user_nets:anything").weight.shape) == (3, 4)  # type: ignore[arg-type]
    assert tuple(build("user_nets:Own").get_parameter("head.weight").shape) == (3, 4)
    assert isinstance(build("user_package.inner:plain"), nn.Linear)


@pytest.mark.usefixtures("user_directory")
def test_the_specs_own_arguments_win() -> None:
    assert build("user_nets:sized", num_classes=8)[1].out_features == 8  # type: ignore[index]


def test_the_current_directory_is_importable_only_meanwhile(user_directory: Path) -> None:
    build("user_nets:plain")
    assert str(user_directory) not in sys.path


@pytest.mark.usefixtures("user_directory")
@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("user_net:plain", {}, "no module 'user_net' .*did you mean 'user_nets'"),
        ("user_package.iner:plain", {}, "package 'user_package'; did you mean 'inner'"),
        ("user_nets:plian", {}, "has no 'plian'; did you mean 'plain'"),
        ("user_nets:qqqq", {}, "has no 'qqqq'; it has Own, anything, broken, plain, sized and oth"),
        ("user_nets:answer", {}, "'answer' is int, not a function"),
        ("user_nets:wrong_kind", {}, "returned list; it must return an nn.Module"),
        ("user_nets:broken", {}, "raised KeyError: 'no such layer'"),
        ("user_nets:plain", {"depth": 3}, "unexpected keyword argument 'depth'"),
        ("needs_missing:net", {}, "needs 'a_package_nobody_has', which is not installed"),
        ("bad_syntax:net", {}, "importing 'bad_syntax' raised SyntaxError"),
    ],
)
def test_each_mistake_is_one_sentence(name: str, args: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        build(name, **args)
    assert "\n" not in str(caught.value)
    assert caught.value.facts["model"] == name
