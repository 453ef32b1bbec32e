"""Engines: what runs the clients. One protocol (`wecfl.base.Engine`), the same numbers."""
