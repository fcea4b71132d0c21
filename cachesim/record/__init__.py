"""A proxy between a client and its server: requests pass unchanged, their common prefixes are
recorded.

    client ── request ──> proxy ── request ──> server
    client <── answer ─── proxy <── answer ──── server
                            │  body, answer, times: when both are through
                            v
                         session ──> line of the file, row of the live view
                      (a thread of its own)

`proxy` forwards HTTP and parses no prompt; `answer` parses the servers' cache counts; `session`
writes both as a line without text, with the reason for reprocessed tokens.
"""
