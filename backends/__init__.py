"""Places that run programs on real data.

A backend is a module `<name>_backend` with `unavailable() -> str | None` (why it cannot run here, found
without importing what it needs), `limits` (a `Target`: what it can run), and
`load(program, comm=None, **options)`, which gives an executable: called with the send and receive buffers
and the operation, again and again, then `close()`d.  The numpy backend defines the right answers.
"""
