"""etcd: the session, the lease, the line of candidates and the watch on the own key.

Decides nothing about jobs. It promises that a deadline counts from the *send* of a request, that a
term begins only after a linearizable read of the own key, and that silence is never health. Foreign
exceptions (gRPC) are mapped in codes.py, once. Importing this package loads neither gRPC nor stubs.
"""
