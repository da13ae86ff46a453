"""Loads a trained policy from its run's folder, lets it act, and evaluates it.

Nothing in the folder is unpickled, and code named in its files is imported only with trust.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import nn

from accel_rl.envs import make_env
from accel_rl.envs.closing import close_all
from accel_rl.envs.function_transfer import FUNCTION
from accel_rl.envs.spaces.conversion import to_env_action, to_policy_rows
from accel_rl.envs.spaces.masks import read_mask
from accel_rl.envs.spec import Array
from accel_rl.errors import RunError, UsageError
from accel_rl.models.memory_limit import MemoryLimit
from accel_rl.rollout import Game, RecurrentInputs
from accel_rl.run_folder import policy_file
from accel_rl.run_folder.directory import ANY_MACHINE, without_sampler
from accel_rl.run_folder.trust import ACTS, PLAYS, check_code, foreign_code
from accel_rl.samplers.base import GamesToPlay
from accel_rl.settings.resolve import Config, resolve
from accel_rl.training.build import build_algo, build_sampler
from accel_rl.training.evaluation import Evaluation

SPARE_NUMBERS = 2**22  # numbers that a network may have beyond those in its file
MAX_CHARACTERS = 200  # shown of an unexpected error

State = tuple[Array, Array]
"""A recurrent policy's memory of N games: its recurrent state float32 [N, S] and its last actions [N, *A]."""


def load(run_dir: str | Path, best: bool = False, trust: bool = False) -> "TrainedPolicy":
    """Loads the policy of a run's last checkpoint or, with best, of its best evaluation.

    Reads policy.json and a safetensors file next to it, no pickle. trust: imports and runs code from outside this
    package that policy.json names: an algorithm or a network at once, an environment or wrappers when they are needed.
    Raises UsageError if there is no policy, if its files are damaged or do not fit together, or if it needs trust."""
    folder = Path(run_dir)
    description = folder / policy_file.DESCRIPTION
    settings, spec = policy_file.read_description(folder)
    weights = policy_file.find_weights(folder, best)
    check_code(settings, ACTS, description, trust)
    try:
        if settings.get("simulator") == "cuda":
            settings = without_sampler(settings)
        config = replace(resolve(settings | ANY_MACHINE | {"simulator": "auto"}, spec=spec), trust=trust)
        policy = _build_policy(config, weights)
    except UsageError as error:
        raise UsageError(f"{description}: {error}") from None
    except Exception as error:  # settings of other people may be wrong in any way
        if trust:
            raise
        text = " ".join(f"{type(error).__name__}: {error}"[:MAX_CHARACTERS].split())
        raise UsageError(f"{description} does not describe a policy: {text}") from error
    policy.load_state_dict(policy_file.read_weights(weights, policy))
    return TrainedPolicy(config, policy, description)


def _build_policy(config: Config, weights: Path) -> Any:
    """Makes the run's network. Raises UsageError before it takes memory if the file of weights is far too small."""
    if foreign_code(config.as_dict(), ACTS):
        return build_algo(config).policy
    try:
        with MemoryLimit(weights.stat().st_size + SPARE_NUMBERS):  # four times the numbers in a float32 file
            return build_algo(config).policy
    except MemoryError:
        raise UsageError(f"{weights} is too small for the network that these settings describe") from None


class TrainedPolicy:
    """A trained policy that acts.

    config: the configuration of its training run. policy: its network, on config.device. source: the file of config.
    """

    def __init__(self, config: Config, policy: nn.Module, source: Path):
        self.config, self.policy, self._source = config, policy.eval(), source
        self._generator = torch.Generator(config.run.device).manual_seed(config.run.seed)

    def predict(
        self,
        observation: Any,
        state: State | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        reward: Any = None,
        action_masks: Any = None,
    ) -> tuple[Any, State | None]:
        """Returns the action for one observation (as accel_rl.envs.make_env returns it), or the actions for a batch,
        and the state for the next step's call. Stable-Baselines3's models are called in the same way.

        A batch has an additional first axis; in a Dict or Tuple space, each part has it. Pictures may have their
        channels first or last. Actions are in the environment's own numbering: an array [N, ...] for a batch; for one
        observation a number if the space is Discrete, else an array; in a Dict or Tuple, this holds for each part.
        deterministic: the likeliest action instead of a sampled one.

        Only a recurrent policy has a state, with a row for each game; None: all games begin now. episode_start [N]
        bool: True for games that begin now; their state is ignored. reward [N]: the last step's reward as in training
        (Atari: clipped), for policies with previous_inputs; None: zeros. Nothing is remembered between calls.
        action_masks: for policies trained with masks, the mask of the observation, or of each one of a batch; None: it
        is the observation's entry action_mask. Raises ValueError if an argument is of another kind than in training."""
        spec = self.config.spec
        is_pair = isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict)
        if is_pair and spec.nested_space is None:
            raise ValueError("this is a pair of an observation and its info, as reset() returns it: pass the first")
        rows, is_batch = to_policy_rows(observation, action_masks, spec)
        batch = torch.from_numpy(rows).to(self.config.run.device)
        policy: Any = self.policy
        noise = None if deterministic else policy.draw_noise(1, len(batch), self._generator)[0]
        inputs = self._recurrent_inputs(len(batch), state, episode_start, reward) if policy.state_size else None
        actions, _, recurrent = policy.act(batch, noise, inputs)
        actions = actions.cpu().numpy()
        next_state = None if recurrent is None else (recurrent.cpu().numpy(), actions)
        return to_env_action(actions if is_batch else actions[0], spec.action_space), next_state

    def player(self, env: gymnasium.Env[Any, Any]) -> Callable[[Any, float, Any], Any]:
        """Returns act(observation, last reward, info) for one game of env from its start. It acts like the run's
        evaluations."""
        state: State | None = None
        sources = self.config.spec.mask_sources

        def act(observation: Any, reward: float, info: Any) -> Any:
            nonlocal state
            mask = read_mask(sources[0], env, observation, info) if sources else None
            greedy = self.config.run.eval_greedy
            action, state = self.predict(observation, state, None, greedy, reward, action_masks=mask)
            return action

        return act

    def _recurrent_inputs(self, num_games: int, state: Any, episode_start: Any, reward: Any) -> RecurrentInputs:
        """Returns a recurrent policy's other inputs. Raises ValueError for arguments that do not fit."""
        spec, device, policy = self.config.spec, self.config.run.device, cast(Any, self.policy)
        if state is None:
            recurrent = np.zeros((num_games, policy.state_size), np.float32)
            action = np.zeros((num_games, *spec.action_shape), spec.action_dtype)
            is_first = np.ones(num_games, bool)
        else:
            if not isinstance(state, tuple) or len(state) != 2:
                raise ValueError("state must be None or the second result of predict")
            recurrent, action = state
            if len(recurrent) != num_games:
                raise ValueError(f"{num_games} observations with the state of {len(recurrent)} games")
            is_first = np.zeros(num_games, bool)
        try:
            if episode_start is not None:
                is_first = is_first | np.broadcast_to(np.asarray(episode_start, bool), num_games)
            rewards = np.broadcast_to(np.asarray(0.0 if reward is None else reward, np.float32), num_games).copy()
        except ValueError:
            raise ValueError(f"episode_start and reward must have a value for each of {num_games} games") from None
        inputs = (recurrent, action, rewards, is_first)
        return RecurrentInputs(*(torch.as_tensor(rows, device=device) for rows in inputs))

    def evaluate(self, episodes: int, seed: int | None = None, greedy: bool | None = None) -> Evaluation:
        """Evaluates the policy over whole games. Arguments and errors are those of `play`."""
        return Evaluation.of(self.play(episodes, seed, greedy))

    def play(self, episodes: int, seed: int | None = None, greedy: bool | None = None) -> list[Game]:
        """Plays whole games in simulator processes; returns their raw scores and lengths.

        greedy: takes the likeliest actions instead of sampled ones; None: like the run's evaluations.
        Raises UsageError if the environment needs trust, RunError if no game ends."""
        config = self.config
        self._check_env()
        if seed is not None:
            config = resolve({**config.as_dict(), "seed": seed}, spec=config.spec)
        least = math.lcm(2, max(1, config.workers))  # the fewest environments that divide over the workers
        num_envs = min(config.run.envs, max(least, -(-episodes // least) * least))
        sampler = build_sampler(config, self.policy, horizon=1, num_envs=least, num_evaluation_envs=num_envs)
        num_threads = torch.get_num_threads()
        torch.set_num_threads(config.plan.sampling_threads)
        try:
            greedy = config.run.eval_greedy if greedy is None else greedy
            games = sampler.evaluate(GamesToPlay(episodes), index=0, greedy=greedy)
        finally:
            sampler.close()
            torch.set_num_threads(num_threads)
        if not games:
            raise RunError(f"no game of {config.run.env} has ended within its step limit")
        return games

    def record_video(self, out: Path, seed: int | None = None) -> Game:
        """Plays one game and writes it to out, an MP4. seed: the game's; None: any. Errors: see video.record_video."""
        from accel_rl.analysis.video import record_video

        env = self.make_env()
        try:
            return record_video(env, self.player(env), out, seed=seed)
        finally:
            close_all([env])

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Makes the policy's training environment, with rendering. Raises UsageError if it needs trust."""
        self._check_env()
        env = self.config.env
        return make_env(env.env_id, env.preset, "rgb_array", env.simulator, env.wrappers, **env.options)

    def _check_env(self) -> None:
        env_id = self.config.env.env_id
        if env_id.startswith(FUNCTION):
            raise UsageError(
                f"the environment was made by {env_id.removeprefix(FUNCTION)}, a function of the program that trained "
                "this policy: let the policy act there, by accel_rl.load(...).predict, or train with "
                "env='package.module:factory'"
            )
        check_code(self.config.as_dict(), PLAYS, self._source, self.config.trust)
