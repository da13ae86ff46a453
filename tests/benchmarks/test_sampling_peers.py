"""The benchmark of our sampler against other vector environments: its peers, and its JSON from a tiny real run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_rl.envs import EnvConfig
from accel_rl.envs.games.atari import PRESETS
from sampling_peers import peer_builders, peer_frame_shape


def test_peers_get_frames_that_are_at_least_as_large() -> None:
    """No peer's frames are smaller than our sampler's."""
    for options in PRESETS.values():
        assert all(a >= b for a, b in zip(peer_frame_shape(options), options.frame_shape, strict=True))


@pytest.mark.parametrize("name", ["envpool-sync", "envpool-async", "ale-sync", "ale-async", "gymnasium-async"])
def test_peer(name: str) -> None:
    """A peer can be set up, and continues after its turn."""
    builders, missing = peer_builders(EnvConfig("pong", "stooke"), 2)
    if name not in builders:
        pytest.skip(f"not installed; {missing}")
    peer = builders[name]()
    try:
        assert all(peer.run(0.01) > 0 for _ in range(2))
        assert 0 <= peer.shares["env_wait"] <= 1.01
    finally:
        peer.close()


@pytest.mark.slow
def test_a_whole_run(run_program: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Our sampler is compared with each installed peer, on the console and in the file."""
    file = tmp_path / "peers.json"
    run_program("sampling_peers.py", "--envs-per-core", 2, "--seconds", 0.01, "--rounds", 2, "--json", file)
    result, said = json.loads(file.read_text()), capsys.readouterr().out
    assert {"random", "ale-sync", "ale-async", "gymnasium-async"} <= result["contestants"].keys()
    peers = result["contestants"].keys() - {"random"}
    assert result["ratios"].keys() == {f"random / {name}" for name in peers}
    for name, contestant in result["contestants"].items():
        assert len(contestant["rates"]) == 2 and min(contestant["rates"]) > 0 and f"\n{name} " in said
