"""Conversations and preferences."""
