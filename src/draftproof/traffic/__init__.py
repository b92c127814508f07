"""A load client: calls to an OpenAI-compatible server, what they took, and whether texts changed.

Knows HTTP and streams of events; no model and no server of ours, so that it is light beside the
server that it measures.
"""
