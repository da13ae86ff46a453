"""Samples environments that form one batch on the policy's device (defined in envs/batches/device_env.py).

Observations, rewards and ends of episodes are read by DLPack and copied into the rollout on the device; actions go back
the same way. Python does nothing per environment, and nothing waits for the device between steps. Once per rollout, the
host fetches what it must know: finished games, and whether all numbers are finite.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from accel_rl.envs.batches.device_env import array_library, final_observation, resets_in_next_step, row_views
from accel_rl.envs.batches.env_batch import BatchConfig, rollout_layout
from accel_rl.envs.closing import close_all
from accel_rl.envs.games.atari import game_name
from accel_rl.envs.global_generators import GlobalGenerators, with_own_generators
from accel_rl.envs.gym import RESET, STEP, call
from accel_rl.envs.make import make_device_env
from accel_rl.envs.spaces.masks import KEY, nums_choices
from accel_rl.envs.spaces.observations import LARGEST
from accel_rl.envs.spaces.pictures import is_channels_last
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import RunError
from accel_rl.models.bf16_weights import refresh
from accel_rl.models.distributions import make_distribution
from accel_rl.models.masks import allowed_actions, disallow, to_rows
from accel_rl.rollout import Game, RecurrentInputs, torch_dtype
from accel_rl.samplers.action_server import ActionServer
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.serial import SerialSampler
from accel_rl.stacks import blank
from accel_rl.updates.cuda_graphs import CudaGraphs

if TYPE_CHECKING:
    from accel_rl.samplers.device_atari import CudaBatch


class DeviceSampler(SerialSampler):
    """A sampler that steps all environments at once, in this process; the policy acts once for all of them.

    Evaluations use separate environments, which are made once and reset for each evaluation."""

    def _build(self, generator: torch.Generator) -> tuple[ActionServer, Any]:
        self._instances: dict[bool, Any] = {}  # the user's objects, by whether they are for evaluations
        return super()._build(generator)

    def _make_arrays(self, config: SamplerConfig) -> dict[str, Any]:
        layout = rollout_layout(self.spec, config.horizon, config.num_envs, config.window)
        arrays = {
            name: torch.zeros(shape, dtype=torch_dtype(dtype), device=self.device)
            for name, (shape, dtype) in layout.items()
        }
        return {**arrays, "restarts": np.zeros(config.num_envs, np.int64)}

    def _make_server(self, arrays: dict[str, Any], generator: torch.Generator, config: SamplerConfig) -> ActionServer:
        return DeviceServer(self.spec, arrays, generator, config, self.device)

    def _make_envs(self, batch: BatchConfig, arrays: dict[str, Any]) -> "DeviceBatch | CudaBatch":
        if game_name(batch.env.env_id):
            from accel_rl.samplers.device_atari import CudaBatch  # not at the top: it needs the emulator's packages

            return CudaBatch(batch, self.spec, arrays)
        is_evaluation = batch.role > 0
        if is_evaluation not in self._instances:
            num_envs = arrays["reward"].shape[1]
            seed = int(_seed_sequence(batch).generate_state(1)[0] >> 1)
            self._instances[is_evaluation] = make_device_env(batch.env, num_envs, seed, str(self.device))
        return DeviceBatch(batch, self.spec, arrays, self._instances[is_evaluation])

    def close(self) -> None:
        super().close()
        close_all([env for env in self._instances.values() if hasattr(env, "close")])
        self._instances.clear()


class DeviceServer(ActionServer):
    """A server that chooses the actions of all environments at once; everything stays on the device.

    On a GPU, unless config.cuda_graphs is off, the policy runs as a CUDA graph from the third step on."""

    def __init__(
        self,
        spec: EnvSpec,
        arrays: dict[str, Any],
        generator: torch.Generator,
        config: SamplerConfig,
        device: torch.device,
    ):
        super().__init__(spec, arrays, generator, config, num_groups=1)
        self._blanked.clear()  # `act` does not need them
        self.device = device
        self._graphs = CudaGraphs(device) if config.cuda_graphs and device.type == "cuda" else None

    def act(self, group: int, t: int) -> None:
        noise = None if self._greedy else self._noise[group][t]
        recurrent_inputs = self._recurrent_inputs and RecurrentInputs(
            *(rows[self.window + t] for rows in self._recurrent_inputs)
        )
        if not t:
            refresh(self._policy)
        seen: Any = self._seen[group][t]
        work = act = self._policy.act
        if self.history:
            seen, work = (seen, self._ages[group][t]), lambda rows, *others: act(blank(*rows), *others)
        arguments = seen, noise, recurrent_inputs
        action, policy_outputs, state = self._graphs(act, work, arguments) if self._graphs else work(*arguments)
        self._chosen[group][t].copy_(action)
        self._newest = (group, t, action, policy_outputs, state)

    def _finished_games(self) -> list[Game]:
        arrays = self.shared
        ended = (arrays["terminated"] | arrays["truncated"]) & ~arrays["game_score"].isnan()
        step, env = ended.nonzero(as_tuple=True)
        length = arrays["game_length"][step, env]  # 0: use the episode's length
        length = length.where(length > 0, arrays["age"][step, env] + 1)
        found = torch.stack([env.double(), arrays["game_score"][step, env], length.double()], 1)
        return [Game(int(env), score, int(length)) for env, score, length in found.tolist()]


class DeviceBatch:
    """A batch of environments that writes into columns of time-major tensors, as BatchSimulator does for single ones.

    config: reset_mode must be "immediate", restart_on_error False. arrays: tensors of rollout_layout on the policy's
    device, without a window. env: the user's object. Methods raise RunError for invalid values that it returns."""

    def __init__(self, config: BatchConfig, spec: EnvSpec, arrays: dict[str, Any], env: Any):
        self.config, self.spec, self.arrays, self._env = config, spec, arrays, env
        (horizon, self.num_envs), self.device = arrays["reward"].shape, arrays["reward"].device
        self._views = row_views(arrays, horizon)
        self._resets_in_next_step = resets_in_next_step(env, config.env.env_id)
        self.generators = GlobalGenerators(_seed_sequence(config))
        self._space = spec.action_space
        self._bounds: list[Tensor] = []
        if isinstance(self._space, gymnasium.spaces.Box):
            self._bounds = [torch.as_tensor(bound, device=self.device) for bound in (self._space.low, self._space.high)]
        self._start = torch.as_tensor(getattr(self._space, "start", 0), device=self.device)
        self._from_torch: Any = None  # converts tensors to the environment's arrays; set by a reset
        self._first: Tensor | None = None  # first observation [B, ...], until a rollout begins with it
        # Score of each environment's game so far. NaN: the game began with random actions, so its score is left out.
        self._score = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)  # by the last step
        # Set if a last observation was missing, a mask allowed nothing, or a number did not fit its dtype.
        self._lacks_final, self._lacks_choice, self._lacks_type = torch.zeros(3, dtype=torch.bool, device=self.device)

    @torch.no_grad()
    def start(self) -> None:
        """Starts all games, and plays the same number of random actions in each."""
        seeds = _seed_sequence(self.config, int(self.arrays["restarts"][0]))
        rows = self._rows(*self._reset(seeds))
        draw = self._random_actions(int(seeds.generate_state(2)[1]))
        self._ended.zero_()
        for _ in range(self.config.decorrelation_steps):
            observation, _, *ends, info = self._step_env(draw(rows))
            self._ended = ends[0] | ends[1]
            rows = self._rows(observation, info, self._ended & self._resets_in_next_step)
        self._score.fill_(torch.nan if self.config.decorrelation_steps else 0.0)
        self._first = rows

    def _random_actions(self, seed: int) -> Callable[[Tensor], Tensor]:
        """Returns a function that draws allowed random actions for rows [B, R], in the environment's format."""
        if not self.spec.mask_size:
            space = batch_space(self._space, self.num_envs)
            space.seed(seed)
            return lambda rows: torch.as_tensor(space.sample(), device=self.device)
        distribution = make_distribution(self._space, is_masked=True)
        generator = torch.Generator(self.device).manual_seed(seed)

        def draw(rows: Tensor) -> Tensor:
            allowed = allowed_actions(rows, self.spec)
            noise = distribution.draw_noise((self.num_envs,), generator)
            return self._to_env(distribution.sample(disallow(allowed.float() - 1, allowed), noise))

        return draw

    def begin(self) -> None:
        """Starts a rollout."""
        arrays = self.arrays
        arrays["valid"][:] = True
        self._lacks_final.zero_()
        if self._first is not None:
            arrays["observation"][0] = self._first
            arrays["reset"][0], arrays["age"][0], self._first = True, 0, None

    @torch.no_grad()
    def step(self, t: int) -> None:
        """Steps every environment with its action of step t; writes row t and the observation after it."""
        now, after = self._views[t : t + 2]
        observation, reward, terminated, truncated, info = self._step_env(self._to_env(now["action"]))
        final = None
        if self._resets_in_next_step:  # a step that only resets is not a sample
            starts = self._ended
            reward = reward.masked_fill(starts, 0)
            terminated, truncated = terminated & ~starts, truncated & ~starts
            torch.logical_not(starts, out=now["valid"])
            self._ended = ended = terminated | truncated
            rows = final = self._rows(observation, info, ended)
        else:
            starts = ended = terminated | truncated
            rows = self._rows(observation, info)
            if (given := final_observation(info)) is not None:
                final = self._rows(given, info.get("final_info") or {}, True)
        after["observation"].copy_(rows)
        if final is not None:
            now["final_observation"].copy_(final)
        else:
            self._lacks_final |= (ended if self.config.terminal_frames else truncated & ~terminated).any()
        now["reward"].copy_(reward)
        now["terminated"].copy_(terminated)
        now["truncated"].copy_(truncated)
        after["reset"].copy_(starts)
        torch.add(now["age"], 1, out=after["age"]).masked_fill_(starts, 0)
        torch.add(self._score, reward, out=now["game_score"])
        self._score = now["game_score"].masked_fill(ended, 0.0)

    def pause(self) -> None:
        """Checks once a rollout for errors, since no step waits for the device."""
        checked = {name: self.arrays[name] for name in ("reward", "observation")}
        wrong = [~values.isfinite().all() for values in checked.values()]
        lacks = [self._lacks_final, self._lacks_choice, self._lacks_type]
        lacks_final, lacks_choice, lacks_type, *found = torch.stack([*lacks, *wrong]).tolist()
        if lacks_final:
            raise self._error(
                "a step has ended episodes without info['final_obs'], their true last observations; return them there, "
                "or declare metadata['autoreset_mode'] as NEXT_STEP if the next step resets"
            )
        if lacks_choice:
            has_choice = self._has_choice(allowed_actions(self.arrays["observation"], self.spec))
            places = (~has_choice).nonzero().tolist()
            where = "of environment {1} after {0} steps of a rollout".format(*places[0]) if places else "at the start"
            raise self._error(f"the action mask {where} allows nothing, though the game goes on")
        if lacks_type:
            raise self._error(f"an observation does not fit the declared type {self.spec.observation_space.dtype}")
        for (name, values), is_wrong in zip(checked.items(), found, strict=True):
            if is_wrong:
                step, env = (~values.isfinite()).nonzero()[0, :2].tolist()
                raise self._error(
                    f"the {name} of environment {env} at step {step} of a rollout is not finite: "
                    f"{values[step, env].tolist()}, or beyond the largest number of float32, {LARGEST:.4g}"
                )

    # ---- what goes to the environment, and what comes back ----

    def _reset(self, seeds: np.random.SeedSequence) -> tuple[Any, Any]:
        observation, info = self._call("reset", RESET, seed=int(seeds.generate_state(1)[0] >> 1))
        library = array_library(observation)
        self._from_torch = (lambda tensor: tensor) if library is torch else library.from_dlpack
        return observation, info

    @with_own_generators
    def _call(self, method: str, parts: tuple[str, ...], *arguments: Any, **options: Any) -> tuple[Any, ...]:
        """Calls a method of the environment, which must return a tuple of these parts; returns that."""
        try:
            return call(self._env, method, parts, *arguments, **options)  # type: ignore[no-any-return]
        except RunError as error:
            raise self._error(str(error)) from None
        except Exception as error:
            raise self._error(f"{method}() failed:\n{traceback.format_exc()}") from error

    def _to_env(self, action: Tensor) -> Tensor:
        """Returns a copy of actions in the environment's numbering and bounds (see `to_env_action`)."""
        return action.clamp(*self._bounds) if self._bounds else action + self._start

    def _step_env(self, action: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, Any]:
        observation, reward, terminated, truncated, info = self._call("step", STEP, self._from_torch(action))
        return (
            observation,
            self._tensor("reward", reward, (), _NUMBERS),
            self._tensor("terminated", terminated, (), (torch.bool,)),
            self._tensor("truncated", truncated, (), (torch.bool,)),
            info,
        )

    def _rows(self, observation: Any, info: Any, is_over: Any = False) -> Tensor:
        """Returns observations and masks as the policy's rows [B, *row_shape]. is_over: bool [B], or True for all: a
        game's last observation, whose mask may be missing or allow nothing."""
        seen = self._observations(observation)
        if not self.spec.mask_size:
            return seen
        masks = info.get(KEY) if isinstance(info, dict) else None
        if is_over is True and masks is None:
            masks = torch.zeros(self.num_envs, self.spec.mask_size, dtype=torch.bool, device=self.device)
        elif is_over is not True and self.spec.mask_sources[0] == "method":
            masks = self._env.action_masks()
        allowed = self._tensor("action mask", masks, (self.spec.mask_size,), (torch.bool, *_INTEGERS)) != 0
        has_choice = self._has_choice(allowed)
        self._lacks_choice |= ~(has_choice | is_over).all()
        return to_rows(seen, allowed | (~has_choice & is_over)[:, None])

    def _has_choice(self, allowed: Tensor) -> Tensor:
        """Returns whether masks [..., A] allow something in every choice: bool [...]."""
        choices = torch.split(allowed, nums_choices(self._space), -1)
        return torch.stack([choice.any(-1) for choice in choices]).all(0)

    def _observations(self, observation: Any) -> Tensor:
        """Returns observations as networks see them [B, *O]: in the rows' dtype, pictures with channels first."""
        shape, dtype = self.spec.picture_shape or self.spec.observation_shape, torch_dtype(self.spec.row_dtype)
        dtypes = _NUMBERS if dtype.is_floating_point else (dtype, *_INTEGERS, torch.bool)
        given = self._tensor("observation", observation, shape, dtypes)
        tensor = given.to(dtype)
        if given.dtype != dtype and not dtype.is_floating_point:
            self._lacks_type |= (tensor != given).any()
        if self.spec.picture_shape is None:
            return tensor
        if len(shape) > 2 and is_channels_last(shape[-3:]):
            tensor = tensor.movedim(-1, -3)
        return tensor.reshape(self.num_envs, *self.spec.observation_shape)

    def _tensor(self, name: str, value: Any, shape: tuple[int, ...], dtypes: Sequence[torch.dtype]) -> Tensor:
        """Returns an array [B, *shape] of the environment as a tensor. Raises RunError for a wrong shape, dtype or
        device, or one without DLPack."""
        if not isinstance(value, Tensor):
            if not hasattr(value, "__dlpack__"):
                raise self._error(f"{name} is a {type(value).__name__}, without the DLPack protocol; return an array")
            value = from_dlpack(value)
        if value.shape != (self.num_envs, *shape):
            raise self._error(
                f"{name} has shape {(*value.shape,)}, but num_envs={self.num_envs} asks for {(self.num_envs, *shape)}"
            )
        if value.dtype not in dtypes:
            raise self._error(f"{name} is of type {value.dtype}, but has to be {' or '.join(map(str, dtypes))}")
        if value.device != self.device:
            raise self._error(
                f"{name} lies on {value.device}, but the policy is on {self.device}; make arrays there (a factory is "
                "given the parameter `device`), or use --device"
            )
        tensor: Tensor = value
        return tensor

    def _error(self, text: str) -> RunError:
        return RunError(f"{self.config.env.env_id}: {text}")

    # ---- checkpoints ----

    def get_state(self) -> list[dict[str, Any]]:
        """Returns, in a pause, one entry for the whole batch; "simulator" is None if the batch has no get_state."""
        has_hook = hasattr(self._env, "get_state") and hasattr(self._env, "set_state")
        state = self._env.get_state() if has_hook else None
        generators = self.generators.get_state()
        return [{"simulator": state, "score": self._score.cpu(), "ended": self._ended.cpu(), "generators": generators}]

    def set_state(self, state: list[dict[str, Any]]) -> list[int]:
        """Continues from get_state's result, instead of `start`.

        Returns the environments that had to be restarted: all or none."""
        (saved,) = state
        if saved["simulator"] is None:
            self.arrays["restarts"] += 1  # other games than when the run was new
            self.start()
            self.generators.set_state(saved["generators"])
            return list(range(self.num_envs))
        self._reset(_seed_sequence(self.config))
        self._env.set_state(saved["simulator"])
        self._score.copy_(saved["score"])
        self._ended.copy_(saved["ended"])
        self.generators.set_state(saved["generators"])
        return []

    def close(self) -> None:
        """Does nothing: the sampler owns the environments."""


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_NUMBERS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, *_INTEGERS, torch.bool)


def _seed_sequence(config: BatchConfig, restarts: int = 0) -> np.random.SeedSequence:
    """Returns the seed of a learner's environments, which depends on the index of its first one."""
    spawn_key = (config.role, config.first_env, *([restarts] if restarts else []))
    return np.random.SeedSequence(config.seed, spawn_key=spawn_key)
