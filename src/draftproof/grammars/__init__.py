"""Grammars by llguidance: compiled off the steps, followed token by token.

Knows a tokenizer and texts as lists of ids; no models, no trees, no engine.
"""
