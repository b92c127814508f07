"""Calls of tools in chats: what a client offers, and how a model's text is taken apart.

A template has a form in which its model writes calls (`forms`). Text in that form becomes calls
again, piece by piece (`parser`, `objects`); what has to be a call is bound to a grammar
(`offered`). Knows neither HTTP nor the engine.
"""
