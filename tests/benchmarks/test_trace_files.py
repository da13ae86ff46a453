"""The files that samples and updates pass: those of every process are counted, and no others."""

from trace_files import trace


def test_the_files_of_both_journeys() -> None:
    """Would catch a journey without the simulator processes' part, or with what only builds or imports it."""
    settings = {"env": "CartPole-v1", "device": "cpu", "envs": 4, "workers": 2, "decorrelation_steps": 0}
    names = {journey: {file.name for file in files} for journey, files in trace(settings).items()}
    assert {"alternating.py", "action_server.py", "worker.py", "batch_simulator.py", "gym.py"} <= names["sample"]
    assert {"a2c.py", "returns.py", "update.py", "flat.py", "optimizers.py"} <= names["update"]
    assert not {"a2c.py", "update.py", "build.py", "making.py"} & names["sample"]
    assert not {"alternating.py", "worker.py", "build.py"} & names["update"]
