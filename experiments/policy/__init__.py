"""Reinforcement learning: the objective, estimators of its gradient, rewards, rollouts."""
