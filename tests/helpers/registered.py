"""Registers an environment when it is imported, as packages of environments do."""

import gymnasium

gymnasium.register("Registered-v0", "tests.helpers.toy_envs:Counting", max_episode_steps=7)
gymnasium.register("RegisteredBatch-v0", vector_entry_point="tests.helpers.vector_envs:make")
