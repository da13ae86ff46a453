"""The options of `accel-rl bench`: wrong ones are refused before any work."""

import pytest

from accel_rl.bench import emulator, network, sampling
from accel_rl.cli import main
from accel_rl.hardware.topology import available_cpus

BAD = [
    ("sampling --envs-per-core 0", "envs_per_core=0 must be at least 1"),
    ("sampling --seconds -1", "seconds=-1.0 must be greater than 0"),
    ("sampling --rounds many", "invalid int value: 'many'"),
    ("sampling --cores 99999", "cores=99999 must be from 1 to "),
    ("sampling --env CartPole-v1", "env=CartPole-v1 is not an Atari game"),
    ("sampling --env-preset nosuch", "unknown env preset 'nosuch'"),
    ("sampling --simulator stella", "unknown simulator 'stella'"),
    ("sampling --device tpu", "device=tpu does not exist on this machine; use cpu"),
    ("sampling --cores 1 --envs-per-core 3", "envs=3 does not split into 2 groups"),
    ("sampling --cores 1 --workers 999", "workers=999 are more than envs="),
    ("sampling --figure picture.bmp", "figure=picture.bmp must end in .png"),
    ("sampling --no-table --figure picture.png", "figure=picture.png is of the table's runs; leave --no-table out"),
    ("network --json .", ". is a folder; name a file"),
    ("sampling --secnds 2", "unknown argument '--secnds'; did you mean --seconds"),
    ("network --network a3c dqn", "network=dqn is unknown; choose from a3c, nature, nature_norm, cule, mlp"),
    ("network --batches 8 0", "batches=0 must be at least 1"),
    ("network --threads 99999", f"threads=99999 must be from 1 to {len(available_cpus())}, the logical CPUs"),
    ("emulator --games pongg", "unknown game 'pongg'; did you mean pong"),
    ("emulator --parts raww", "unknown part 'raww'; did you mean raw"),
    ("emulator --num-envs 3", "envs=3 does not split into 2 groups"),
    ("emulator --seconds nan", "seconds=nan must be greater than 0"),
    ("emulator --figure picture.bmp", "figure=picture.bmp must end in .png"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_options_are_one_clear_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a traceback, or an error that comes only after minutes of work."""
    for module, work in ((sampling, "resizing_share"), (network, "measure"), (emulator, "compare")):
        monkeypatch.setattr(module, work, lambda *_: pytest.fail("work has begun"))
    assert main(["bench", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
