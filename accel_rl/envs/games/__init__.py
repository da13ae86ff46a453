"""Atari games on either emulator, from screens to the frames, rewards and ends that a policy sees."""
