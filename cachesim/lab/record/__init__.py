"""A proxy between a client and its server: requests pass unchanged, their common prefixes are
recorded.

    client ── request ──> passage ── request ──> server
    client <── answer ─── passage <── answer ──── server
                             │  body, answer, times: when both are through
                             v
                          session ──> line of the file, row of the live view
                      (a thread of its own)

`passage` knows HTTP and nothing of prompts; `answer` reads what servers say of their caches;
`entry` turns both into a line without text; `session` writes it, and says why it was reprocessed.
"""
