"""Synchronized batched sampling with two alternating groups of simulator processes (Stooke & Abbeel 2018, section 3).

While one group of workers steps its environments, the other one's observations go through the network together. Read
this file, then action_server.py (how actions are chosen) and worker.py (what the processes do).
"""

import time
from typing import Any

import torch

from accel_rl.envs.batch_simulator import BatchConfig, rollout_layout
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.rollout import Game, Policy, Rollout
from accel_rl.samplers.action_server import ActionServer
from accel_rl.samplers.base import EVALUATION_HORIZON, Games, OnStep, SamplerConfig, noise_generator
from accel_rl.samplers.gpu_action_server import make_server
from accel_rl.samplers.worker_pool import EnvArrays, WorkerPool


class AlternatingSampler:
    """config.num_workers processes hold the environments; this process serves whichever group is ready.

    Raises UsageError or RunError if an environment can't be built, UsageError for no workers; every method that waits
    raises RunError if a worker fails. `close` ends the workers.
    """

    def __init__(
        self,
        spec: EnvSpec,
        batch: BatchConfig,
        policy: Policy,
        config: SamplerConfig,
        device: str | torch.device = "cpu",
    ):
        if not config.num_workers:
            raise UsageError("workers=0 must be at least 1, or use SerialSampler (--sampler serial)")
        self.spec, self.batch, self.policy, self.config = spec, batch, policy, config
        self.device = torch.device(device)
        layout = rollout_layout(spec, config.horizon, config.num_envs, config.window)
        train = EnvArrays(layout, config.num_workers, config.window)
        evaluation = EnvArrays(rollout_layout(spec, EVALUATION_HORIZON, config.evaluation_envs), config.num_workers)
        self._evaluation = evaluation
        self._server = self._make_server(train, noise_generator(batch, self.device))
        self._envs = [train.envs(worker) for worker in range(config.num_workers)]  # of each worker
        self._started = False
        self.seconds = {"env_wait": 0.0, "inference": 0.0, "action_wait": 0.0}
        if self.device.type == "cuda":
            self.seconds["gpu"] = 0.0
        self.pool = WorkerPool(
            config.num_workers,
            batch,
            train,
            evaluation,
            config.env_timeout_s,
            config.env_build_timeout_s,
            config.worker_cpus,
            config.spin,
        )

    def _make_server(self, stage: EnvArrays, generator: torch.Generator) -> ActionServer:
        graphs, num_learners = self.config.cuda_graphs, self.config.num_learners
        return make_server(
            self.spec, stage.arrays, generator, self.device, stage.window, stage.memory, graphs, num_learners
        )

    @property
    def bytes_moved(self) -> int:
        return self._server.bytes_moved

    @property
    def num_restarts(self) -> int:
        return int(self._server.arrays["restarts"].sum())

    def collect(self, on_step: OnStep | None = None, every: int = 1, first_step: int | None = None) -> Rollout:
        if not self._started:
            self.pool.request("start")
            self._started = True
        if first_step is not None:
            self._server.steps_done = first_step
        return self._collect(self._server, greedy=False, on_step=on_step, every=every)

    def recent(self, t: int, num_steps: int, envs: slice) -> Rollout:
        return self._server.recent(t, num_steps, envs)

    def _collect(
        self,
        server: ActionServer,
        greedy: bool,
        on_step: OnStep | None = None,
        every: int = 1,
        policy: Policy | None = None,
    ) -> Rollout:
        T = server.horizon
        server.begin(policy or self.policy, greedy)
        self.pool.begin()
        step = [0, 0]  # the row that each group will announce next
        while step != [T + 1, T + 1]:
            start = time.perf_counter()
            behind = 0 if step[0] <= step[1] else 1
            due = -(-step[behind] // every) * every  # the next t of on_step, which the group in front has to wait for
            held = on_step is not None and due < step[1 - behind]
            group = self.pool.wait((behind,) if held else (behind, 1 - behind))
            ready = time.perf_counter()
            t = step[group]
            if t < T:
                server.serve(group, t)
                self.pool.answer(group)
                server.record()  # only now: the environments step already
            step[group] += 1
            self.seconds["env_wait"] += ready - start
            self.seconds["inference"] += time.perf_counter() - ready
            if on_step and t < T and t % every == 0 and step[1 - group] > t:
                on_step(t)
        self.pool.end()
        rollout = server.finish()
        self.seconds["action_wait"] = self.pool.waited_s
        if server is self._server and self.device.type == "cuda":
            self.seconds["gpu"] = server.gpu_s
        return rollout

    def evaluate(self, games: Games, index: int, greedy: bool, policy: Policy | None = None) -> list[Game]:
        role = index + 1
        server = self._make_server(self._evaluation, noise_generator(self.batch, self.device, role))
        self.pool.open_evaluation(role)
        played = games.play(lambda: self._collect(server, greedy, policy=policy), server.num_envs)
        self.pool.close_evaluation()
        server.close()
        return played

    def get_state(self) -> dict[str, Any]:
        states = self.pool.request("get_state")
        envs = {
            env: env_state
            for of, worker in zip(self._envs, states, strict=True)
            for env, env_state in zip(of, worker, strict=True)
        }
        return {"server": self._server.get_state(), "envs": [envs[env] for env in range(self.config.num_envs)]}

    def set_state(self, state: dict[str, Any]) -> list[int]:
        self._started = True
        self._server.set_state(state["server"])
        parts = [[state["envs"][env] for env in envs] for envs in self._envs]
        restarted = sorted(env for of in self.pool.request("set_state", parts) for env in of)
        self._server.end_episodes(restarted)
        return [self.batch.first_env + env for env in restarted]

    def close(self) -> None:
        try:
            self._server.close()
        finally:  # a GPU that has failed must not keep the workers
            self.pool.close()
