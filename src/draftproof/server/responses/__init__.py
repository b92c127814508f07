"""`/v1/responses` without state: a body becomes a chat's, and the chat's answer OpenAI's items.

`body` translates what is asked, `output` what is answered. Knows chats; nothing is remembered.
"""
