"""The trained environments of many packages: an interrupted program continues, and the page has the results."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import environments
from accel_rl.envs import EnvConfig
from accel_rl.errors import RunError
from environments import CASES, Case

ROOT = Path(__file__).parents[2]


class Lives(gymnasium.Env[Any, Any]):
    """Games of two lives with three steps each, whose scores of 5 are clipped to rewards of 1."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, **_: Any) -> Any:
        return 0, {}

    def step(self, _: Any) -> Any:
        self._steps += 1
        info = {"score": 5.0, "game_over": self._steps % 6 == 0}
        return 0, 1.0, self._steps % 3 == 0, False, info


def test_the_page_shows_the_tried_environments() -> None:
    """The page's table shows the committed results, which are those of the program's commands."""
    cases = json.loads((ROOT / environments.RESULTS).read_text())["cases"]
    assert {name: case["command"] for name, case in cases.items()} == {name: c.command for name, c in CASES.items()}
    assert [*cases] == [*CASES]
    assert environments.table(cases.values()) in (ROOT / "docs/environments.md").read_text()


def test_cases_that_are_known_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """An interrupted program keeps its results, and runs only cases that are new or whose command has changed."""
    ran: list[str] = []

    def run_case(case: Case) -> dict[str, Any]:
        ran.append("cut" if len(ran) == 2 else case.command)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return {"command": case.command, "package": "a 1", "refused": "accel-rl: no"}

    monkeypatch.setattr(environments, "run_case", run_case)
    file, run = tmp_path / "environments.json", environments.run
    with pytest.raises(KeyboardInterrupt):
        run(["taxi", "cartpole", "crafter"], file)
    assert [*run(["crafter", "taxi", "cartpole"], file)] == ["cartpole", "taxi", "crafter"]
    assert ran == [CASES["taxi"].command, CASES["cartpole"].command, "cut", CASES["crafter"].command]
    monkeypatch.setitem(CASES, "taxi", replace(CASES["taxi"], flags="--algo ppo --env Taxi-v4"))
    assert run(["taxi", "cartpole"], file)["taxi"]["command"] == ran[-1] == CASES["taxi"].command
    assert len(ran) == 5 and f"| a 1 | `{CASES['taxi'].command}` | refused: no | | |" in capsys.readouterr().out


def test_random_games() -> None:
    """Random play returns raw scores of whole games, as many as asked for."""
    assert environments.play_randomly(EnvConfig(f"{__name__}:Lives"), games=3) == [30.0] * 3
    cartpole = EnvConfig("CartPole-v1", options={"sutton_barto_reward": True})
    assert environments.play_randomly(cartpole, games=1) == [-1.0]


@pytest.mark.parametrize(("status", "stderr"), [(0, "done\n"), (1, "it failed\n"), (2, "Traceback\n...\n")])
def test_what_is_no_refusal(status: int, stderr: str) -> None:
    """A command that trains, or that fails in several lines, does not count as refused."""
    with pytest.raises(RunError, match=rf"^accel-rl train should be refused in one line, but ended with:\n{stderr}"):
        environments.refusal(subprocess.CompletedProcess(["accel-rl", "train"], status, "", stderr))


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case has the steps, evaluation and random scores of its own commands."""
    monkeypatch.chdir(ROOT)
    result = environments.run_case(Case("gymnasium", "--algo ppo --env FrozenLake-v1 --steps 600 --horizon 16"))
    assert result["steps"] == 768 and result["score"]["episodes"] == 20
    assert 0 <= result["random_score"] <= 0.5 and 0 <= result["score"]["mean_reward"] <= 1


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_refused_case() -> None:
    """A multi-agent environment is refused in one line that says so."""
    pytest.importorskip("pettingzoo")
    assert "tictactoe_v3:env is a PettingZoo environment" in environments.run_case(CASES["tic_tac_toe"])["refused"]
