/* cron_leader protocol model: two configurations from one file. Mutants redefine the macros below, see check.sh.
 *  default   ledger transactions under ANY timing: a lease may expire at any moment, every process may freeze
 *            between any two steps, any reply may be lost, any COMMIT may land late:  all but S3
 *  -DTIMED   lease TTL ticks, send-anchored deadline, drift, etcd leader change; the watch tells nobody: S3 S5
 * -DTXN, -DBACK, -DORDERS, -DWORD add what is off by default. Sn=1 switches a property's assertion on. spin also checks that nothing deadlocks. */
#ifndef TERMS
#define TERMS 3                 /* terms (= leases, election keys) begun in the whole run */
#endif
#define N 2                     /* nodes */
#define LOWER (key[0] && key[0] < f || key[1] && key[1] < f)
byte rev, tids, key[N], ktid[N];/* etcd: revision; terms begun; each node's live key (create_revision), its term */
byte L, Ltid, Lnode, off;       /* the committed fence row: fence, term nonce, node label, offset */
#define MYKEY (key[i] == f && ktid[i] == t)
#define GONE(j) key[j] = 0; ktid[j] = 0
#define NEWTERM tids < TERMS && (tids || i == 0) -> tids++; t = tids; rev++; f = rev + off; key[i] = f; ktid[i] = t
#define RESIGN atomic { if :: MYKEY -> GONE(i) :: else fi }
#ifndef TIMED
/* ------------------------------------------------------------------ ledger configuration: one slot, raise - sweep - gate - claims */
#ifndef ALO
#define ALO 0                   /* delivery: 0 at-most-once, 1 at-least-once */
#endif
#ifndef LEAN
#define LEAN 0                  /* 1: no retries, and a sweep never writes the slot due */
#endif
#ifndef OPS
#define OPS 2                   /* claims a term may try */
#endif
#ifndef TMO
#define TMO 1                   /* requests a term may stop waiting for, leaving the server to finish them */
#endif
#ifndef HIST
#define HIST 0                  /* 1: an etcd snapshot from before all this is restored, revisions repeat; 2: and fence rebase mends it */
#endif
#ifndef TXN
#define TXN 0                   /* 1: a run writes an effect of its own, with its success in the same transaction (tick.transaction()) */
#endif
#ifndef TXFITS                  /* ... if its row is still the one it runs */
#define TXFITS PFITS
#endif
#ifndef TXENDS                  /* ... which that ends */
#define TXENDS st = DONE
#endif
#ifndef LOSSY
#define LOSSY 1                 /* 0: every reply arrives, every COMMIT succeeds */
#endif
#ifndef BACK
#define BACK 0                  /* 1: once, the ledger loses its end: an earlier state of it comes back, of a term that is over;
                                   2: SQLite: all nodes lose power once, and the ledger what was not on disk */
#endif
#ifndef FULL                    /* ... commits that wait for the disk: all but a raise */
#define FULL (k != RAISE)
#endif
#ifndef SKIP
#define SKIP 0                  /* 1: the operator answers a ledger that went back: go on, and run nothing of what it may have lost */
#endif
#ifndef STILL                   /* ... the loss stays open in the fence row, raise after raise, until a term has settled */
#define STILL loss
#endif
#ifndef PASSES                  /* ... a settlement then ends the slot, whatever waits there */
#define PASSES loss
#endif
#ifndef ORDERS
#define ORDERS 0                /* operators' orders: 1: one, whose slot has no other origin; 2: a pause, then its resume */
#endif
#ifndef OFITS                   /* ... are carried out by the transaction that answers them, unless they are answered */
#define OFITS (answered < a)
#endif
#ifndef LEAST                   /* a raise takes no ledger that shows less than etcd remembers (a raise's request field a) */
#define LEAST (!BACK || SKIP || L >= a)
#endif
#ifndef KEYED                   /* etcd remembers a raise some time after the gate opened, if the key of that term still stands */
#define KEYED(j) key[j] == pend[j]
#endif
#ifndef LOST                    /* what comes back lacks a raise that etcd remembers */
#define LOST (recHi > bL)
#endif
#ifndef PASSED                  /* by then the deadline of whoever is deposed has passed: its gate is shut */
#define PASSED(j) (rid[j] == 0 || rid[j]/4 == Ltid)
#endif
#define PUTREC(j) if :: KEYED(j) -> rec = pend[j]; if :: rec > recHi -> recHi = rec :: else fi :: else fi; pend[j] = 0
#ifndef UP                      /* the raise */
#define UP (L < f)
#endif
#define MINE (NONCELESS && Lnode == i || !NONCELESS && Ltid == t)      /* which read-back of the fence row counts as our own raise */
#define GUARD (L == f && (NONCELESS || Ltid == t))                     /* the in-term guard ... */
#ifndef LOCK                    /* ... FOR SHARE: re-reads the row after any wait */
#define LOCK !ex -> sh++; held = 1; g = GUARD
#endif
#ifndef UNGUARDED               /* requests sent without the guard */
#define UNGUARDED 0
#endif
#define ROWF (sf + (RAWREV -> off : 0) < f)                            /* the sweep takes rows of an older fence ... */
#ifndef UNFIN                   /* ... that are unfinished, judged by the server ... */
#define UNFIN (st == DUE || st == RUN || st == RETRY)
#endif
#ifndef ENDS                    /* ... and ends, or with at-least-once makes due (or ends: limit of takeovers), these: */
#define ENDS (st == RUN)
#endif
#ifndef FRESH                   /* a late copy of the sweep applies again; (swept < f): its INSERT of the term row stops it */
#define FRESH 1
#endif
#ifndef READY                   /* the claim: which states of an own row it takes */
#define READY (st == DUE || st == RETRY)
#endif
#ifndef MUT                     /* a mutant of the node or of the slot's compare-and-set */
#define MUT 0
#endif
#define CLAIMLESS (MUT == 1)    /* no raise, no sweep: the first write raises */
#define SWEEPFIRST (MUT == 2)   /* the sweep before the raise */
#define NOSWEEP (MUT == 3)      /* the gate opens without waiting for the sweep */
#define PUTUNC (MUT == 4)       /* a claim not answered yet is put back */
#define PUTGO (MUT == 5)        /* a claim is put back though its run may have started */
#define RESWEEP (MUT == 6)      /* a sweep is sent again with a later 'now', not the same statement */
#define READ1 (MUT == 7)        /* the client reads which rows to sweep before the raise ... */
#define READ2 (MUT == 8)        /* ... or after it: request field a */
#define READRUN (MUT == 9)      /* a claim is sent for a row read as running */
#define NOCAS (MUT == 10)       /* slot writes compare neither attempt nor run_id */
#define NONCELESS (MUT == 14)   /* no nonce: the fence row names the node only */
#define RAWREV (MUT == 15)      /* the sweep compares slot.fence with the bare create_revision */
#define REDO (MUT == 16)        /* at-most-once 'running' rows made due */
#define KEEPATT (MUT == 11)     /* the claim of an existing row keeps its attempt */
#define LOWATT (MUT == 12)      /* the put-back takes the attempt back */
#define APART (MUT == 17)       /* an order is answered in one transaction, and carried out in another */
#define SURE (MUT == 13 || sr == rid[i] && st == RUN)  /* a lost COMMIT reply of a claim counts as applied when ... */
#define NONE 0
#define RUN 1
#define RETRY 2                 /* failed, attempts left */
#define DONE 3                  /* any final state */
#define DUE 4
#define GAP 5                   /* no row: covered by a gap row */
mtype = { RAISE, SWEEP, CLAIM, PUT, FIN, TX, ORD, OK, ZERO, REFUSED, UNC, LEAVE };
chan rq[2*N] = [1] of { mtype, byte, byte, byte, byte, byte };  /* kind fence tid attempt run_id outcome */
chan rp[2*N] = [1] of { mtype };
bit busy[2*N], gone[2*N];       /* connection in use; its client stopped listening */
byte sh; bit ex;                /* fence row: share holders, exclusive holder */
byte st, sf, sa, sr;            /* the slot: state fence attempt run_id */
byte rid[N];                    /* the run_id a node is busy with: 4 * term + claim, 4 * term while it has none */
byte rec, recHi, pend[N];       /* etcd: the fence remembered, the highest ever; what a node has it remember next */
bit snap, back; byte bL, bTid, bNode, bst, bsf, bsa, bsr; /* the ledger's earlier state */
#define KEEP bL = L; bTid = Ltid; bNode = Lnode; bst = st; bsf = sf; bsa = sa; bsr = sr
#define FORGET back = 1; L = bL; Ltid = bTid; Lnode = bNode; st = bst; sf = bsf; sa = bsa; sr = bsr; bL = 0; bTid = 0; bNode = 0; bst = 0; bsf = 0; bsa = 0; bsr = 0
bit loss;                       /* in the fence row: some of what was acknowledged may be gone */
byte asked, answered; bit paused; /* orders so far */
byte eff;                       /* ghost: effects committed by the slot's runs */
byte hi, claimTid, hiGate, swept, execs[8], out; /* ghosts: highest fence raised; last term to raise; highest gate; highest sweep; the run last started, 0 once recorded as failed */
#define RAISED if :: SKIP -> loss = (STILL || L < a) :: else fi; L = f; Ltid = t; Lnode = c/2; claimTid = t; if :: f > hi -> hi = f :: else fi
#define ACCEPT if :: CLAIMLESS && f > L -> RAISED :: else fi; assert(!S1 || (f >= hi && f >= hiGate && t == claimTid))
#define OVER (st == DONE || st == GAP)
#define WRITTEN assert(!S4 || st == NONE || OVER || sf >= hi); assert(!S8 || st == NONE || OVER || sf >= swept)
#define CFITS ((NOCAS || sa == a-1) && (st == NONE || st == GAP || READY && sf == f))
#define PFITS (st == RUN && (NOCAS || sa == a && sr == r))
proctype Conn(byte c) {         /* one database backend: own pace; may die before COMMIT (also: server-side timeouts) */
  mtype k, w; byte f, t, a, r, o; bit g, held;
end: atomic { rq[c]?k, f, t, a, r, o -> if
       :: k == RAISE -> !ex && sh == 0 -> ex = 1; held = 1; g = (UP) && LEAST
       :: k != RAISE && UNGUARDED -> g = 1
       :: k != RAISE && !(UNGUARDED) -> LOCK
       fi };
  atomic { if                                                      /* COMMIT, or not */
    :: k == RAISE && g -> RAISED; w = OK
    :: k == RAISE && !g -> assert(!S11 || L >= a); w = ZERO
    :: k != RAISE && !g -> w = REFUSED
    :: k == SWEEP && g && FRESH -> if :: f > swept -> swept = f :: else fi; if
       :: SKIP && PASSES -> st = DONE; sf = f
       :: !(SKIP && PASSES) && UNFIN && ROWF -> assert(!S6 || !OVER); if :: ENDS || st == DONE -> assert(!S8 || st == RUN || st == DONE); if :: ALO || REDO -> st = DUE :: !REDO -> st = DONE fi :: else fi; sf = f
       :: !(SKIP && PASSES) && !(UNFIN && ROWF) && o && (st == NONE || st == GAP && o == DUE) -> assert(!S6 || !OVER); st = o; sf = f
       :: else fi; loss = 0; w = OK
    :: k == CLAIM && g && CFITS -> assert(!S6 || !OVER); assert(!S7 || rid[c/2]/4 != r/4 || rid[c/2] == r);
       if :: !(KEEPATT && st != NONE) -> sa++ :: else fi; st = RUN; sf = f; sr = r; w = OK
    :: k == PUT && g && PFITS -> st = DUE; if :: LOWATT -> sa-- :: else fi; w = OK
    :: k == FIN && g && PFITS -> st = o; if :: o == RETRY && out == r -> out = 0 :: else fi; w = OK
    :: k == ORD && g && (OFITS || o == 2) -> if :: o != 1 && ORDERS == 1 -> assert(!S6 || !OVER); st = DUE; sf = f :: o != 1 && ORDERS == 2 -> paused = (a == 1) :: else fi;
       if :: a > answered -> answered = a :: else fi; assert(!S12 || ORDERS != 2 || paused == (answered == 1)); w = OK
    :: k == TX && g && TXFITS -> eff++; assert(!S10 || eff <= 1); TXENDS; w = OK
    :: g && (k == ORD && !(OFITS || o == 2) || k == TX && !(TXFITS) || k == SWEEP && !FRESH || k == CLAIM && !CFITS || (k == PUT || k == FIN) && !PFITS) -> w = ZERO
    :: LOSSY && g -> w = UNC
    fi;
    if :: w == OK && k != RAISE -> ACCEPT; WRITTEN :: else fi;
    if :: w == OK && BACK == 2 && FULL && !back -> KEEP :: else fi;
    if :: w == OK && LOSSY -> w = UNC :: skip fi;                  /* done, and the reply is lost */
    if :: held && ex -> ex = 0 :: held && !ex -> sh-- :: !held fi; held = 0;
    if :: gone[c] -> gone[c] = 0 :: !gone[c] -> rp[c]!w fi; busy[c] = 0;
    k = 0; f = 0; t = 0; a = 0; r = 0; o = 0; g = 0; w = 0; goto end } }
/* Node steps run from one reply to the next request: every delay in between is covered by the reply lying unread. */
inline ask(kk, oo) { if :: !busy[2*i] -> c = 2*i :: busy[2*i] && !busy[2*i+1] -> c = 2*i+1 fi; busy[c] = 1; rq[c]!kk,f,t,a,rid[i],oo; x = 0 }
inline answer() { if            /* a reply; or stop waiting; or the term is over: watch, deadline, an error, a signal */
  :: rp[c]?x :: rp[c]?_ -> x = LEAVE
  :: empty(rp[c]) && tmo < TMO -> tmo++; gone[c] = 1; x = UNC
  :: empty(rp[c]) -> gone[c] = 1; x = LEAVE
  fi; c = 0 }
#define NOW if :: want = NONE :: !LEAN && ORDERS != 1 -> want = DUE :: RESWEEP -> want = GAP fi   /* what the sweep writes where no row is: not yet due; due; missed */
proctype Node(byte i) {
  byte f, t, c, a, n, tmo, want; bit look; mtype x;
again: atomic { f = 0; t = 0; c = 0; a = 0; n = 0; tmo = 0; want = 0; look = 0; x = 0; rid[i] = 0;
    if :: NEWTERM :: tids == TERMS -> goto quit fi };
  atomic { if :: MYKEY && !LOWER -> rid[i] = 4*t; NOW :: !MYKEY -> goto lost fi };     /* the linearizable check before leading */
  atomic { if :: READ1 -> a = st :: BACK -> a = rec :: else fi; if :: CLAIMLESS -> goto gate :: SWEEPFIRST -> goto settle :: else fi;
raise: ask(RAISE, 0) };
  atomic { answer(); if
    :: x == OK
    :: (x == UNC || x == ZERO) && L == f && MINE -> claimTid = t               /* read back: ours */
    :: BACK && x == ZERO && L < f -> goto lost                                 /* it went back: refused */
    :: x == UNC && L < f -> goto raise                                         /* not there (yet): the same raise again */
    :: x == LEAVE || (x == UNC || x == ZERO) && (L > f || L == f && !MINE) -> goto lost
    fi; if :: READ2 -> a = st :: SWEEPFIRST -> goto gate :: else fi;
settle: ask(SWEEP, want) };
  atomic { answer(); if
    :: x == OK || x == ZERO || NOSWEEP && x == LEAVE -> if :: SWEEPFIRST -> goto raise :: else fi
    :: x == UNC -> if :: RESWEEP -> NOW :: else fi; goto settle                /* the SAME sweep again */
    :: x == REFUSED || x == LEAVE && !NOSWEEP -> goto lost
    fi;
gate: a = 0; want = 0; if :: BACK -> pend[i] = f :: else fi; if :: f > hiGate -> hiGate = f :: else fi };            /* the gate opens */
more: atomic { rid[i] = 4*t; assert(!S7 || !(st == RUN && sf == f));           /* 'running' here, run by nobody */
    assert(!S12 || ORDERS != 1 || !answered || st != NONE);                    /* answered, and not carried out */
    if :: n < OPS && !OVER && (ORDERS != 1 || st != NONE) -> n++; rid[i] = 4*t + n; a = sa + 1 :: goto lost :: answered < asked -> a = answered + 1; want = (APART -> 1 : 0); goto order fi;
slot: ask(CLAIM, 0) };
  atomic { answer(); if
    :: x == OK
    :: x == UNC && SURE                                                        /* read back: ours */
    :: x == UNC && !SURE && !PUTUNC -> goto slot                               /* the SAME claim again, never a "no" */
    :: x == UNC && PUTUNC -> goto put
    :: x == ZERO && sr == rid[i] && st == RUN                                  /* our own late COMMIT */
    :: x == ZERO && !(sr == rid[i] && st == RUN) -> if                         /* settled: start nothing, stay leader */
       :: look -> look = 0; rid[i]--; if :: READRUN -> a-- :: else fi; goto ended
       :: !look -> goto more
       fi
    :: x == REFUSED || x == LEAVE -> goto lost
    fi;
    if :: sr == rid[i] -> a = sa :: else fi;                                   /* RETURNING attempt */
    if :: !look -> goto put :: skip fi;                                         /* gate closed, no acknowledgement: not started */
    assert(!S5 || t == claimTid); execs[a]++; assert(!S2 || execs[a] <= 1);    /* exec */
    assert(!S9 || (ALO -> execs[a] <= 1 : out == 0)); out = rid[i]; if :: PUTGO -> goto put :: !PUTGO && !TXN -> goto ended :: else fi;
    ask(TX, DONE) };
  atomic { answer(); if         /* the run's own: it may be killed with its COMMIT under way */
    :: x == OK || x == ZERO || x == UNC -> skip
    :: x == REFUSED || x == LEAVE -> goto lost
    fi;
ended: if :: want = DONE :: !LEAN -> want = RETRY :: ALO -> want = DUE       /* at-least-once: killed by a shutdown */
       :: n < OPS && !look -> look = 1; n++; rid[i]++; if :: READRUN -> a = sa + 1 :: else fi; goto slot  /* a second claim from the same reading */
       fi;
fin: ask(FIN, want) };
  atomic { answer(); if         /* sent when the run ends, gate open or not; LEAVE here: sent once, not waited for */
    :: x == UNC -> goto fin
    :: x == OK || x == ZERO -> want = 0; look = 0; goto more
    :: x == REFUSED || x == LEAVE -> goto lost
    fi };
order: atomic { ask(ORD, want) };
  atomic { answer(); if
    :: x == UNC -> goto order
    :: (x == OK || x == ZERO) && want != 1 -> want = 0; goto more
    :: (x == OK || x == ZERO) && want == 1 -> want = 2; goto order
    :: x == REFUSED || x == LEAVE -> goto lost
    fi };
put: atomic { ask(PUT, 0) };
  atomic { answer(); if
    :: x == UNC -> goto put
    :: x == OK || x == ZERO -> goto more
    :: x == REFUSED || x == LEAVE -> goto lost                                 /* the next sweep does it */
    fi };
lost: atomic { rid[i] = 0; if :: MYKEY -> GONE(i) :: else fi; goto again };
quit: skip }
#define IDLE !(busy[0] || busy[1] || busy[2] || busy[3])
proctype Env() { bit restored;  /* leases expire whenever they like; nobody is told */
end: do
  :: atomic { key[0] && key[1] -> GONE(0) }                                            /* (before there is another key, nobody can tell) */
  :: atomic { key[1] && key[0] -> GONE(1) }
  :: atomic { HIST && !restored && rev > 0 -> restored = 1; rev = 0; GONE(0); GONE(1) }
  :: atomic { BACK && pend[0] -> PUTREC(0) }
  :: atomic { BACK && pend[1] -> PUTREC(1) }
  :: atomic { BACK == 1 && !snap && (L || SKIP) && (st == NONE || SKIP && st == DUE) -> snap = 1; KEEP }
  :: atomic { BACK == 1 && snap && !back && LOST && PASSED(0) && PASSED(1) && IDLE -> FORGET }
  :: atomic { BACK == 2 && !back && !rid[0] && !rid[1] && IDLE -> FORGET }
  :: atomic { asked < ORDERS -> asked++ }
  :: atomic { HIST == 2 && restored && !off && L -> off = L }
  od }
init { byte i; atomic { do :: i < 2*N -> run Conn(i); i++ :: else -> break od; i = 0;
  do :: i < N -> run Node(i); i++ :: else -> break od; run Env() } }
#else
/* ------------------------------------------------------------------ timed configuration: no absolute time, so unbounded */
#ifndef TTL
#define TTL 4
#endif
#ifndef MARGIN
#define MARGIN 2                /* = ACK + one tick of drift a TTL */
#endif
#ifndef ACK
#define ACK 1                   /* ticks an etcd leader without quorum still acknowledges keepalives */
#endif
#ifndef SPLITS
#define SPLITS 1                /* etcd leader changes in the whole run */
#endif
#ifndef AGE                     /* the deadline is anchored at the send: a reply is worth TTL - margin - its age */
#define AGE age[i]
#endif
#ifndef RESET                   /* keepalive timed out: drop what is in flight, then send again */
#define RESET ka[i] = IDLE; age[i] = STALE
#endif
#define STALE (TTL - MARGIN)    /* at this age a reply is worth nothing */
#define IDLE 0
#define SENT 1
#define ACKED 2
#define NOLEASE 3
byte left[N], open[N], age[N], cool[N]; /* ticks: server's lease, client's gate, request in flight, next drift allowed */
byte ka[N], splits, since;              /* keepalive in flight; etcd leader changes, ticks since the last one began */
bit known[N];                           /* the cut-off etcd leader knows this lease */
bit lead[N], split;                     /* elected and claimed; the etcd leader is cut off from its quorum */
byte word[N];                           /* "delete my key": sent by who has no answer any more, applied late or never */
#ifndef WORDFITS                        /* ... and compares the key's create_revision */
#define WORDFITS(j) key[j] == word[j]
#endif
#define OPEN(j) (lead[j] && open[j] > 0)
#define WORTH (AGE + MARGIN < TTL -> TTL - MARGIN - AGE : 0)
#define CHECK assert(!S3 || !(OPEN(0) && OPEN(1)))
proctype Node(byte i) {
  byte f, t; bit chk;
again: atomic { open[i] = 0; known[i] = 0; f = 0; t = 0; chk = 0; ka[i] = IDLE; age[i] = STALE;
    if :: tids < TERMS && (tids || i == 0) -> age[i] = 0 :: tids == TERMS -> goto quit fi };               /* Grant sent */
  atomic { if :: !split && !key[i] && NEWTERM; left[i] = TTL :: tids == TERMS -> goto quit fi };           /* applied */
  atomic { open[i] = WORTH; age[i] = STALE };                                                                /* reply */
  do
  :: atomic { ka[i] == IDLE -> ka[i] = SENT; age[i] = 0 }
  :: atomic { ka[i] == ACKED -> if :: WORTH > open[i] -> open[i] = WORTH; CHECK :: else fi; ka[i] = IDLE; age[i] = STALE }
  :: ka[i] == NOLEASE -> goto lost
  :: atomic { ka[i] == SENT || ka[i] == ACKED -> RESET }
  :: atomic { !lead[i] && !split && MYKEY && !LOWER && L < f -> L = f; lead[i] = 1; CHECK }        /* check claim gate */
#ifdef FREEZE
  :: atomic { OPEN(i) && !chk -> chk = 1 }                                                 /* gate looked at ... */
  :: atomic { chk -> chk = 0; assert(!S5 || L == f) }                                      /* ... and only then exec */
#else
  :: OPEN(i) && !(L == f) -> assert(!S5)
#endif
  :: goto lost
  od;
#ifdef RESIGN_EARLY
lost: RESIGN; lead[i] = 0; goto again;
#elif defined(WORD)
lost: atomic { lead[i] = 0; if :: MYKEY -> word[i] = f :: else fi; goto again };
#else
lost: atomic { lead[i] = 0; if :: MYKEY -> GONE(i); left[i] = 0 :: else fi; goto again };
#endif
quit: age[i] = STALE }
proctype Etcd(byte i) {
end: do
  :: atomic { ka[i] == SENT && !split && key[i] -> left[i] = TTL; ka[i] = ACKED }
  :: atomic { ka[i] == SENT && !split && !key[i] -> ka[i] = NOLEASE }
  :: atomic { ka[i] == SENT && key[i] && known[i] && since <= ACK -> ka[i] = ACKED }         /* the cut-off leader: extends nothing */
  :: atomic { key[i] && left[i] == 0 && !split -> GONE(i) }
  :: atomic { word[i] && !split -> if :: WORDFITS(i) -> GONE(i); left[i] = 0 :: else fi; word[i] = 0 }
  :: atomic { word[i] -> word[i] = 0 }                                                     /* lost */
#ifdef FOREIGN_DEL
  :: atomic { key[i] && !split -> GONE(i); left[i] = 0 }                                   /* etcdctl del; a live lease revoked */
#endif
  od }
#define DEC(v) if :: v > 0 -> v-- :: else fi
#define SERVER DEC(left[0]); DEC(left[1]); DEC(cool[0]); DEC(cool[1]); if :: splits && since <= ACK -> since++ :: else fi
#define TICK(j) DEC(open[j]); if :: age[j] < STALE -> age[j]++ :: else fi
proctype Clock() {              /* a node's clock skips at most one tick in TTL */
end: do
  :: d_step { SERVER; TICK(0); TICK(1) }
  :: d_step { cool[0] == 0 -> SERVER; cool[0] = TTL - 1; TICK(1) }
  :: d_step { TERMS > 2 && cool[1] == 0 -> SERVER; cool[1] = TTL - 1; TICK(0) }
  :: d_step { !split && splits < SPLITS -> split = 1; splits++; known[0] = key[0] > 0; known[1] = key[1] > 0 }
  :: d_step { split -> split = 0; left[0] = (key[0] -> TTL : 0); left[1] = (key[1] -> TTL : 0) }                /* the new etcd leader restarts leases */
  od }
init { atomic { run Node(0); run Node(1); run Etcd(0); run Etcd(1); run Clock() } }
#endif
