"""Sensors that keep partitions in step with sources, prompts and models."""
