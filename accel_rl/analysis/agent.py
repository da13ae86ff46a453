"""A trained agent, loaded from its run's folder: it acts, is evaluated, or is filmed."""

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from accel_rl.envs import make_env
from accel_rl.envs.spaces import find_mismatch, to_env_action, to_row, unbatch
from accel_rl.envs.spec import Array
from accel_rl.errors import RunError
from accel_rl.rollout import RecurrentInputs
from accel_rl.samplers.base import GamesToPlay
from accel_rl.training import checkpoint
from accel_rl.training.build import build_algo, build_sampler
from accel_rl.training.evaluation import Evaluation
from accel_rl.training.resolve import Config, resolve
from accel_rl.training.run_directory import ANY_MACHINE, read_settings


def load(run_dir: str | Path, best: bool = False) -> "Agent":
    """Loads the policy of a run's last checkpoint or, with best, of its best evaluation.

    Raises UsageError if there is none."""
    folder = Path(run_dir)
    saved = read_settings(folder)
    state = checkpoint.load(folder / (checkpoint.BEST if best else checkpoint.CHECKPOINT))
    return Agent(resolve(saved | ANY_MACHINE | {"simulator": "auto"}, spec=state["spec"]), state)


class Agent:
    """Acts with a trained policy. config: of the run that has trained it; state: a checkpoint's contents."""

    def __init__(self, config: Config, state: dict[str, Any]):
        self.config = config
        self.policy = build_algo(config).policy
        self.policy.load_state_dict(state["policy"])
        self.policy.eval()
        self._generator = torch.Generator(config.run.device).manual_seed(config.run.seed)
        self._recurrent_inputs: RecurrentInputs | None = None

    def reset(self) -> None:
        """Makes a recurrent policy forget the last game. To be called before each new one."""
        self._recurrent_inputs = None

    def predict(self, observation: Any, greedy: bool | None = None, reward: Any = 0.0) -> Any:
        """Returns the action for one observation (as accel_rl.envs.make_env returns it), or the actions for a batch.

        A batch has one axis more, first; in a Dict or Tuple space, each part has it. Actions are in the environment's
        own numbering. greedy: the likeliest action instead of a sampled one; None: as the run was evaluated. A
        recurrent policy remembers what it has seen since `reset`; reward: that of its last action, one for each row of
        a batch. Raises ValueError if the observation is not of the kind that the policy was trained on."""
        rows, is_batch = self._rows(observation)
        batch = torch.from_numpy(rows).to(self.config.run.device)
        greedy = self.config.run.eval_greedy if greedy is None else greedy
        noise = None if greedy else self.policy.draw_noise(1, len(batch), self._generator)[0]
        recurrent_inputs = self._make_recurrent_inputs(len(batch), reward)
        chosen, _, state = self.policy.act(batch, noise, recurrent_inputs)
        if recurrent_inputs is not None and state is not None:
            self._recurrent_inputs = recurrent_inputs._replace(
                state=state, previous_action=chosen, is_first=torch.zeros_like(recurrent_inputs.is_first)
            )
        actions = to_env_action(chosen.cpu().numpy(), self.config.spec.action_space)
        if is_batch:
            return actions
        return int(actions[0]) if actions.ndim == 1 and actions.dtype.kind == "i" else actions[0, ...]

    def _make_recurrent_inputs(self, num_envs: int, reward: Any) -> RecurrentInputs | None:
        """Returns what a recurrent policy needs besides observations; None if the policy is not recurrent."""
        if not self.policy.state_size:
            return None
        device, spec = self.config.run.device, self.config.spec
        rewards = torch.as_tensor(reward, dtype=torch.float32, device=device).expand(num_envs)
        if self._recurrent_inputs is None:
            state = torch.zeros(num_envs, self.policy.state_size, device=device)
            action = torch.from_numpy(np.zeros((num_envs, *spec.action_shape), spec.action_dtype)).to(device)
            return RecurrentInputs(state, action, rewards, torch.ones(num_envs, dtype=torch.bool, device=device))
        if len(self._recurrent_inputs.state) != num_envs:
            raise ValueError(
                f"{num_envs} observations after {len(self._recurrent_inputs.state)}: a recurrent policy plays "
                "the same number of games from reset() on; call reset() to play another number"
            )
        return self._recurrent_inputs._replace(previous_reward=rewards)

    def _rows(self, observation: Any) -> tuple[Array, bool]:
        """Returns the network's input [N, ...], and whether the observation is a batch."""
        spec = self.config.spec
        if spec.nested_space is not None:
            is_batch = bool(find_mismatch(observation, spec.nested_space))
            try:
                single = unbatch(observation, spec.nested_space) if is_batch else [observation]
            except ValueError as error:
                raise ValueError(f"the observation{error} (or a batch of such observations)") from None
            return np.stack([to_row(one, spec.nested_space) for one in single]).astype(spec.row_dtype), is_batch
        shape, array = spec.observation_shape, np.asarray(observation)
        if array.shape[-3:] == (*shape[1:], *shape[:1]) and len(shape) == 3:
            array = np.moveaxis(array, -1, -3)  # an image with its channels last, as gymnasium has them
        is_batch = array.shape[1:] == shape and array.ndim == len(shape) + 1
        if not is_batch and array.shape != shape:
            raise ValueError(f"observation of shape {array.shape}: the policy takes shape {shape}, or a batch of it")
        return np.ascontiguousarray(array if is_batch else array[None], spec.row_dtype), is_batch

    def evaluate(self, episodes: int, seed: int | None = None) -> Evaluation:
        """Evaluates the policy over whole games, in simulator processes. Raises RunError if no game ends."""
        config = self.config
        if seed is not None:
            config = resolve({**config.as_dict(), "seed": seed}, spec=config.spec)
        torch.set_num_threads(config.plan.sampling_threads)
        least = math.lcm(2, max(1, config.workers))  # the fewest environments that divide over the workers
        num_envs = min(config.run.envs, max(least, -(-episodes // least) * least))
        sampler = build_sampler(config, self.policy, num_envs=least, num_evaluation_envs=num_envs)
        try:
            games = sampler.evaluate(GamesToPlay(episodes), index=0, greedy=config.run.eval_greedy)
        finally:
            sampler.close()
        if not games:
            raise RunError(f"no game of {config.run.env} has ended within its step limit")
        return Evaluation.of(games)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Makes the environment that the policy was trained in, with rendering."""
        env = self.config.env
        return make_env(env.env_id, env.preset, "rgb_array", env.simulator, **env.options)
