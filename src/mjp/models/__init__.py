"""Backbones of timm with MJP: adapters, configuration, factory, checkpoints."""
