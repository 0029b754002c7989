"""Bytes per stream, and what the streams do to each other."""

from tenure.streams.usage import StreamUsage, stream_usage

__all__ = ["StreamUsage", "stream_usage"]
