"""A fleet under virtual time: the daemons' own core against a model etcd, ledger and network.

Deterministic to the byte: the same plan, the same history. The core is the real one
(`cron_leader.core.Node`); what the sim models is said, part by part, in its modules, and a defect
of those parts of cron_leader that it models cannot show here.
"""
