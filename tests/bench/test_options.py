"""The options of `accel-rl bench`: wrong ones are refused before any work."""

import pytest

from accel_rl.bench import sampling
from accel_rl.cli import main

BAD = [
    ("sampling --envs-per-core 0", "envs_per_core=0 must be at least 1"),
    ("sampling --seconds -1", "seconds=-1.0 must be greater than 0"),
    ("sampling --rounds many", "invalid int value: 'many'"),
    ("sampling --cores 99999", "cores=99999 must be from 1 to "),
    ("sampling --env CartPole-v1", "env=CartPole-v1 is not an Atari game"),
    ("sampling --env-preset nosuch", "unknown env preset 'nosuch'"),
    ("sampling --simulator stella", "unknown simulator 'stella'"),
    ("sampling --device tpu", "device='tpu' must be auto, cpu or cuda:<number>"),
    ("sampling --cores 1 --envs-per-core 3", "envs=3 does not split into 2 groups"),
    ("sampling --cores 1 --workers 999", "workers=999 are more than envs="),
    ("sampling --figure picture.bmp", "figure=picture.bmp must end in .png"),
    ("sampling --no-table --figure picture.png", "figure=picture.png shows the table's runs; omit --no-table"),
    ("sampling --json .", ". is a folder; name a file"),
    ("sampling --secnds 2", "unknown argument '--secnds'; did you mean --seconds"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_options_are_one_clear_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong option is refused in one line, before any contestant is built."""
    monkeypatch.setattr(sampling, "compare", lambda *_: pytest.fail("work has begun"))
    assert main(["bench", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
