"""Mistakes of other frameworks where lives, games and time limits end together."""

from typing import Any

import ale_py
import numpy as np
import pytest
from ale_py.roms import get_rom_path

from accel_rl.envs.spec import EnvConfig
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from tests.helpers.samplers import closing, make
from tests.helpers.simulators import NATIVE_FIRST

GAME, SKIP, LIMIT, T = "breakout", 12, 52, 125  # frames per step, steps per game, all steps


def judged(actions: Any) -> tuple[list[tuple[float, int]], dict[str, list[int]]]:
    """Plays the actions [T] on ale-py itself, SKIP frames each; returns score and length of each ended game, and by
    name the steps at which lives and games end."""
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(get_rom_path(GAME))
    games, ends = [], dict[str, list[int]](life=[], over=[], limit=[])
    score, length, lives = 0.0, 0, ale.lives()
    for t, action in enumerate(actions):
        for _ in range(SKIP):
            if not ale.game_over():
                score += ale.act(ale.getMinimalActionSet()[action])
        length += 1
        is_lost, lives = 0 < ale.lives() < lives, ale.lives()
        if is_lost:
            ends["life"].append(t)
        if ale.game_over() or length == LIMIT:
            ends["over" if ale.game_over() else "limit"].append(t)
            games.append((score, length))
            ale.reset_game()
            score, length, lives = 0.0, 0, ale.lives()
    return games, ends


@pytest.mark.parametrize("simulator", NATIVE_FIRST)
def test_lives_end_episodes_and_limits_end_games(simulator: str) -> None:
    """EnvPool issues 239 and 299: with episodic lives, the end at a time limit was neither terminated nor truncated,
    and the score of a game continued in the next one.

    ale-py's own emulator says which steps lose a life, and what each game scores until its end or its limit."""
    options = {"max_episode_steps": LIMIT, "noop_max": 0, "fire_on_start": False, "repeat_action_probability": 0.0}
    options |= {"frame_skip": SKIP, "episodic_lives": True, "frame_shape": (16, 16)}
    env = EnvConfig(GAME, options=options, simulator=simulator)
    sampler = make(SerialSampler, env, SamplerConfig(2, T, 0))
    with closing(sampler):
        rollout = sampler.collect()
    for column in range(2):
        games, ends = judged(rollout.action[:, column].tolist())
        assert len(ends["limit"] + ends["over"]) == 2 and len(ends["life"]) >= 6
        assert [(game.score, game.length) for game in rollout.games if game.env == column] == games
        assert np.flatnonzero(rollout.terminated[:, column]).tolist() == sorted(ends["life"] + ends["over"])
        truncated = sorted(set(ends["limit"]) - set(ends["life"]))  # a step that loses a life is terminated
        assert np.flatnonzero(rollout.truncated[:, column]).tolist() == truncated
        assert np.flatnonzero(rollout.reset[1:, column]).tolist() == sorted(ends["over"] + ends["limit"])
    assert sum(game.score for game in rollout.games) >= 2
