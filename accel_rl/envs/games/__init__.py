"""Atari games on either emulator: from screens to the frames, rewards and episode ends that a policy sees."""
