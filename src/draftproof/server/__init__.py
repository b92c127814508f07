"""An OpenAI-compatible server: one thread steps the engine, asyncio stands in front of it.

A body becomes requests (`bodies`, `sampled`), which are let in (`admission`), written (`writer`)
and answered whole or as events (`answers`, `events`). Knows the engine by its requests; not how
anything is drafted. Imported by `draftproof serve` alone: its libraries are an extra.
"""
