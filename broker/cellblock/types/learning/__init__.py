"""Learning observes what tools answer and keeps the shapes of it, merged and fading, as JSON Schemas.

In: results of tool calls, overlays. Out: output schemas, each marked as given or observed. Start at `learner`;
`offers` holds results that wait, `sample` looks at one, `shape` makes shapes, `store` keeps them.
"""
