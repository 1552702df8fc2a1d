"""Defects built in on purpose. A harness that stays green under them proves nothing.

Each is a patch from outside (defects.py), applied in the process before it starts: the program has
no switch for it. Some show in a scenario, where a check must say NO; nearly all in a test, which
must fail. `python -m chaos.canaries NAME ARG...` is the daemon with one defect; the supervisor
starts it in place of `python -m cron_leader`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chaos import defects

VARIABLE = "CHAOS_CANARY"
"""Names the defect to the supervisors that a test starts."""

CORE, ETCD, LEDGER, DAEMON = "tests/core/", "tests/etcd/", "tests/ledger/", "tests/daemon/"
FLEET = DAEMON + "test_fleet.py::"


@dataclass(frozen=True, slots=True)
class Canary:
    """test: what must fail, all its parameters. scenarios: where the check `red` must say NO.
    law: the one that must say NO in netns, when a leader is cut off from etcd for 2.5 TTL.

    fleet: one more test that must fail, of real nodes whose daemons have the defect.
    supervisor: `arm` is for the supervisor's process, and for no other.
    """

    name: str
    arm: Callable[[], None]
    test: str
    scenarios: tuple[str, ...] = ()
    red: str = ""
    law: str = ""
    fleet: str = ""
    supervisor: bool = False

    @property
    def tests(self) -> tuple[str, ...]:
        return (self.test, *filter(None, [self.fleet]))

    @property
    def breaks(self) -> str:
        """What the defect is, in a line."""
        return (self.arm.__doc__ or "").strip()


_ALL = (
    # -- the deadline
    Canary(
        "deadline-from-receipt",
        defects.deadline_from_receipt,
        ETCD + "test_lease.py::test_a_late_reply_never_lengthens_the_term",
    ),
    Canary(
        "first-deadline-from-grant",
        defects.first_deadline_from_grant,
        ETCD + "test_lease.py::test_a_late_reply_never_lengthens_the_term",
    ),
    Canary(
        "older-reply-counts",
        defects.older_reply_counts,
        CORE + "test_gate.py::test_a_late_reply_never_lengthens_the_term",
    ),
    Canary(
        "resend-on-stream",
        defects.resend_on_stream,
        ETCD + "test_lease.py::test_an_unanswered_keepalive_is_sent_again_only_on_a_fresh_stream",
    ),
    Canary(
        "renewed-though-stuck",
        defects.renewed_though_stuck,
        ETCD + "test_lease.py::test_a_process_that_is_not_well_loses_its_lease",
    ),
    Canary(
        "deadline-ignored",
        defects.deadline_ignored,
        CORE + "test_node.py::test_the_deadline_ends_the_term_even_before_the_event_that_came_late",
        ("lease-stall",),
        red="stopped_by_its_own_deadline",
        fleet=FLEET + "test_an_etcd_away_for_longer_than_the_ttl_ends_the_term_by_its_own_deadline",
    ),
    # -- the gate, and leaving
    Canary(
        "gate-ignored",
        defects.gate_ignored,
        CORE + "test_dispatch.py::test_the_gate_is_asked_again_between_claim_and_exec",
    ),
    Canary(
        "past-deadline-started",
        defects.past_deadline_started,
        "tests/runners/test_command.py::test_a_run_past_its_deadline_is_not_executed",
    ),
    Canary(
        "silence-shuts-nothing",
        defects.silence_shuts_nothing,
        CORE + "test_node.py::test_silence_of_the_watch_shuts_the_gate_and_does_not_end_the_term",
    ),
    Canary(
        "cut-unnoticed",
        defects.cut_unnoticed,
        CORE + "test_node.py::test_silence_of_the_watch_shuts_the_gate_and_does_not_end_the_term",
        law="never_two_gates",
    ),
    Canary(
        "jump-ignored",
        defects.jump_ignored,
        CORE + "test_node.py::test_a_clock_jump_shuts_the_gate_until_leadership_is_proven_again",
    ),
    Canary(
        "older-nonce-heard",
        defects.older_nonce_heard,
        CORE + "test_node.py::test_events_of_an_older_nonce_are_dropped",
    ),
    Canary(
        "refusal-ignored",
        defects.refusal_ignored,
        CORE + "test_node.py::test_a_refused_heartbeat_ends_the_term",
    ),
    Canary(
        "lost-runs-live",
        defects.lost_runs_live,
        CORE + "test_dispatch.py::"
        "test_a_lost_term_kills_its_runs_at_once_and_leaves_the_rows_to_the_sweep",
    ),
    Canary(
        "key-before-gate",
        defects.key_before_gate,
        CORE + "test_node.py::"
        "test_a_graceful_stop_waits_for_the_run_in_flight_then_records_resigns_and_exits",
        fleet=FLEET + "test_sigterm_lets_the_run_in_flight_end_records_it_and_exits_0",
    ),
    Canary(
        "resign-before-run",
        defects.resign_before_run,
        CORE + "test_node.py::"
        "test_a_graceful_stop_waits_for_the_run_in_flight_then_records_resigns_and_exits",
        fleet=FLEET + "test_sigterm_lets_the_run_in_flight_end_records_it_and_exits_0",
    ),
    Canary(
        "key-before-runs",
        defects.key_before_runs,
        CORE + "test_node.py::"
        "test_a_run_that_does_not_die_holds_the_keys_up_for_half_a_margin_only",
    ),
    # -- etcd
    Canary(
        "no-last-check",
        defects.no_last_check,
        ETCD + "test_line.py::test_a_candidate_whose_key_is_gone_does_not_lead_when_its_turn_comes",
    ),
    Canary(
        "no-hasleader",
        defects.no_hasleader,
        ETCD + "test_watch.py::"
        "test_a_member_that_lost_its_peers_ends_the_watch_long_before_patience_does",
    ),
    Canary(
        "silence-ignored",
        defects.silence_ignored,
        ETCD + "test_watch.py::test_a_frozen_etcd_is_silence",
    ),
    Canary(
        "polled-flag",
        defects.polled_flag,
        ETCD + "test_tenure.py::test_the_own_key_deleted_by_hand_ends_the_term",
    ),
    Canary(
        "older-store-trusted",
        defects.older_store_trusted,
        ETCD + "test_tenure.py::test_a_store_older_than_what_was_seen_ends_the_term",
    ),
    Canary(
        "unguarded-resign",
        defects.unguarded_resign,
        ETCD + "test_tenure.py::test_leaving_deletes_no_key_that_somebody_else_put",
    ),
    Canary(
        "no-last-word",
        defects.no_last_word,
        ETCD + "test_spare.py::test_with_its_own_connection_broken_it_says_so_over_the_spare_one",
        ("one-way",),
        red="successor_gate_in_time",
    ),
    # -- the ledger, and slots
    Canary(
        "no-fence",
        defects.no_fence,
        LEDGER + "test_conformance.py::"
        "test_a_lower_revision_is_refused_with_the_fence_that_stands[sqlite]",
        ("lease-stall", "split-brain"),
        red="no_stale_write_accepted",
        law="no_stale_write_accepted",
    ),
    Canary(
        "row-guard-only",
        defects.row_guard_only,
        LEDGER + "test_leaders.py::"
        "test_no_write_of_an_older_term_commits_after_a_raise[sqlite-claim]",
    ),
    Canary(
        "raise-takes-equal",
        defects.raise_takes_equal,
        LEDGER + "test_conformance.py::"
        "test_the_same_revision_with_another_nonce_is_refused[sqlite]",
    ),
    Canary(
        "gate-without-raise",
        defects.gate_without_raise,
        CORE + "test_node.py::test_the_gate_opens_after_raise_and_settlement_in_that_order",
    ),
    Canary(
        "gate-before-targets",
        defects.gate_before_targets,
        "tests/fencing/test_targets.py::"
        "test_the_gate_hears_of_the_raise_only_once_the_targets_are_raised_too[sqlite]",
        fleet=DAEMON + "test_transaction.py::"
        "test_a_fence_target_refuses_a_run_of_a_deposed_leader_once_the_next_one_has_its_gate_open",
    ),
    Canary(
        "attempt-kept",
        defects.attempt_kept,
        LEDGER + "test_conformance.py::"
        "test_a_waiting_row_is_claimed_by_the_attempt_seen_and_by_no_other[sqlite]",
    ),
    Canary(
        "lost-commit-trusted",
        defects.lost_commit_trusted,
        LEDGER + "test_leaders.py::"
        "test_a_finish_whose_commit_was_cut_off_is_sent_again_until_it_stands[ahead-of-it]",
    ),
    Canary(
        "guard-without-nonce",
        defects.guard_without_nonce,
        LEDGER + "test_leaders.py::test_a_term_of_the_same_fence_with_another_nonce_is_refused",
    ),
    Canary(
        "no-nonce",
        defects.no_nonce,
        LEDGER + "test_conformance.py::"
        "test_the_same_revision_with_another_nonce_is_refused[sqlite]",
    ),
    Canary(
        "claim-without-guard",
        defects.claim_without_guard,
        LEDGER + "test_leaders.py::"
        "test_a_claim_that_has_written_is_refused_by_the_raise_that_its_guard_waits_for",
    ),
    Canary(
        "guard-without-lock",
        defects.guard_without_lock,
        LEDGER + "test_leaders.py::test_a_guard_holds_the_fence_row_and_the_lock_of_its_election",
    ),
    Canary(
        "raise-without-lock",
        defects.raise_without_lock,
        LEDGER + "test_frozen_holder.py::"
        "test_a_raise_is_not_starved_by_workers_that_keep_committing",
    ),
    Canary(
        "raise-ends-nobody",
        defects.raise_ends_nobody,
        LEDGER + "test_frozen_holder.py::"
        "test_a_holder_frozen_after_its_guard_is_ended_by_the_raise_that_waits_for_it",
    ),
    Canary(
        "raise-ends-nobody-in-a-target",
        defects.raise_ends_nobody,
        LEDGER + "test_frozen_holder.py::"
        "test_a_holder_frozen_in_a_target_delays_no_raise_or_is_ended_by_it[after]",
    ),
    Canary(
        "sweep-unordered",
        defects.sweep_unordered,
        LEDGER + "test_leaders.py::"
        "test_a_takeover_and_a_late_write_of_the_older_term_never_wait_for_each_other[finish]",
    ),
    Canary(
        "run-not-looked-at",
        defects.run_not_looked_at,
        "tests/fencing/test_transaction.py::"
        "test_a_run_that_was_ended_under_its_own_fence_writes_in_no_block",
    ),
    Canary(
        "claim-without-state",
        defects.claim_without_state,
        LEDGER + "test_conformance.py::"
        "test_a_row_that_runs_or_has_ended_is_not_claimed_by_whoever_saw_its_attempt[sqlite]",
    ),
    Canary(
        "sweep-without-state",
        defects.sweep_without_state,
        LEDGER + "test_conformance.py::"
        "test_a_sweep_abandons_running_rows_and_adopts_waiting_ones[sqlite]",
    ),
    Canary(
        "slots-read-early",
        defects.slots_read_early,
        LEDGER + "test_leaders.py::"
        "test_a_slot_taken_while_the_successor_stood_in_line_is_swept[sqlite]",
    ),
    Canary(
        "slots-read-early-and-stateless",
        defects.slots_read_early_and_stateless,
        LEDGER + "test_leaders.py::"
        "test_a_slot_that_ended_while_the_successor_stood_in_line_is_not_run_again[sqlite]",
    ),
    Canary(
        "loss-covered-up",
        defects.loss_covered_up,
        LEDGER + "test_rollback.py::test_a_claim_does_not_cover_up_what_is_gone[sqlite]",
    ),
    Canary(
        "loss-forgotten",
        defects.loss_forgotten,
        LEDGER + "test_rollback.py::"
        "test_a_leader_that_dies_before_it_settles_leaves_the_loss_to_the_next[sqlite]",
    ),
    Canary(
        "lost-slots-rerun",
        defects.lost_slots_rerun,
        LEDGER + "test_rollback.py::"
        "test_skip_runs_nothing_that_waits_in_the_restored_ledger[sqlite]",
    ),
    Canary(
        "put-back-after-go",
        defects.put_back_after_go,
        CORE + "test_dispatch.py::test_the_drain_also_ends_a_run_told_to_go_that_has_not_begun",
    ),
    Canary(
        "mark-in-memory",
        defects.mark_in_memory,
        CORE + "test_dispatch.py::test_the_takeover_writes_what_the_past_owes",
        law="every_slot_explained",
    ),
    Canary(
        "planned-past-unanswered",
        defects.planned_past_unanswered,
        CORE + "test_dispatch.py::"
        "test_planned_to_never_passes_a_slot_whose_claim_has_no_answer_yet",
    ),
    Canary(
        "group-unbounded",
        defects.group_unbounded,
        CORE + "test_groups.py::test_a_slot_waits_while_its_group_is_full_and_other_groups_go_on",
    ),
    Canary(
        "group-keeps-its-turn",
        defects.group_keeps_its_turn,
        CORE + "test_groups.py::test_groups_of_one_priority_have_their_turn_in_rotation",
    ),
    # -- the supervisor
    Canary(
        "started-unregistered",
        defects.started_unregistered,
        "tests/runners/test_link.py::test_a_run_the_supervisor_does_not_acknowledge_is_not_started",
    ),
    Canary(
        "supervisor-misses-deadline",
        defects.supervisor_misses_deadline,
        DAEMON + "test_supervisor.py::test_at_the_deadline_runs_die_though_the_daemon_is_frozen",
        supervisor=True,
    ),
    Canary(
        "revoked-at-deadline",
        defects.revoked_at_deadline,
        DAEMON + "test_supervisor.py::"
        "test_nothing_is_revoked_under_a_daemon_that_is_frozen_or_slow_to_stop",
        supervisor=True,
    ),
    Canary(
        "revoked-at-hang-up",
        defects.revoked_at_hang_up,
        DAEMON + "test_supervisor.py::test_a_closed_pipe_is_not_the_daemons_death",
        supervisor=True,
    ),
    Canary(
        "revoked-before-runs",
        defects.revoked_before_runs,
        DAEMON + "test_supervisor.py::test_nobody_is_asked_to_revoke_before_the_runs_are_gone",
        supervisor=True,
    ),
    Canary(
        "reused-pid-killed",
        defects.reused_pid_killed,
        DAEMON + "test_supervisor.py::test_a_reused_pid_is_not_killed",
        supervisor=True,
    ),
    # -- orders and notices
    Canary(
        "order-carried-out-late",
        defects.order_carried_out_late,
        LEDGER + "test_errands.py::test_a_late_copy_of_a_pause_does_not_undo_its_resume",
    ),
    Canary(
        "pause-forgotten",
        defects.pause_forgotten,
        LEDGER + "test_errands.py::"
        "test_a_slot_of_the_pause_is_never_caught_up_and_one_after_it_runs[sqlite-6-0]",
    ),
    Canary(
        "backfill-runs-all",
        defects.backfill_runs_all,
        LEDGER + "test_errands.py::test_a_backfill_runs_what_never_ran_and_leaves_alone_what_did",
    ),
    Canary(
        "notice-taken-twice",
        defects.notice_taken_twice,
        LEDGER + "test_noticed.py::test_a_notice_of_an_older_term_is_not_taken_again",
        fleet=DAEMON + "test_notices.py::test_over_a_killed_leader_each_failure_is_told_once",
    ),
    # -- the fencing kit
    Canary(
        "kit-without-guard",
        defects.kit_without_guard,
        "tests/fencing/test_transaction.py::test_a_deposed_run_commits_nothing",
    ),
    Canary(
        "upsert-refuses-its-own",
        defects.upsert_refuses_its_own,
        "tests/fencing/test_upsert.py::test_one_leader_writes_twice_and_an_older_one_never_again",
    ),
)

CANARIES = {canary.name: canary for canary in _ALL}


def start(name: str) -> str:
    """A program that stands for the script `cron-leader`, its `run` with the defective daemon."""
    return (
        "import os, sys; from chaos.canaries import launcher; "
        "options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True)); "
        f"argv = launcher({name!r})(options); os.execv(argv[0], argv)"
    )


def launcher(name: str) -> Callable[[Mapping[str, str]], list[str]]:
    """Starts a node as `cron-leader run` does, with the defective daemon under its supervisor."""
    from cron_leader.cli.run import command

    def launch(options: Mapping[str, str]) -> list[str]:
        supervisor, daemon = _split(command(options))
        after_module = daemon[daemon.index("cron_leader") + 1 :]
        return [*supervisor, "--", sys.executable, "-m", "chaos.canaries", name, *after_module]

    return launch


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def main() -> int:
    name = sys.argv[1]
    CANARIES[name].arm()
    from cron_leader.__main__ import main as daemon

    return daemon(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
