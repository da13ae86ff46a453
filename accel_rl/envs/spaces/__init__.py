"""Observations, actions and masks, as arrays that networks and replays can hold."""
