"""The worker host owns the Deno workers of one machine and relays between them and the broker.

It holds no credentials and never imports the broker (`cellblock`).
"""
