"""What the model registry wants is what the cluster serves, and the registry learns what was done.

The core (`model`, `names`, `choice`, `audit`, `resource`, `readiness`, `traffic`, `plan`) is pure:
`plan` takes what is desired and what is observed and returns steps.  The shells (`client`,
`cluster`, `observe`, `apply`, `loop`) read, execute and repeat.
"""
