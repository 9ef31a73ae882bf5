/*
 * Groups of requests in one SQL transaction, on several servers.
 *
 * Requests that arrive together share one SQL transaction, each with its own savepoint and receipt.
 * The leader locks the union of all rows in the global order before the first savepoint. On SQLite,
 * the lock of the database is the only row. PostgreSQL has no groups yet.
 */
module groups
open util/ordering[Row]

abstract sig Rule {}
one sig GlobalOrder, UnionFirst, ReceiptAfterCommit, OwnSavepoint, LookupInSavepoint extends Rule {}
one sig Design { rules: set Rule }
pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

-- Rows of branches, attempts and the counter, in the order of ADR 0016.
sig Row {}
sig Key {}
sig Request { key: one Key, rows: some Row }
-- A request that a check rejects.
sig Invalid in Request {}
-- A server with one group of requests at a time; every request is in one group.
sig Server { group: set Request }
fact { all r: Request | one group.r }
-- The row of an operation key is one of the rows that its requests lock.
fact { all q, r: Request | q.key = r.key implies some q.rows & r.rows }

abstract sig Phase {}
one sig Waiting, Locked, Ended extends Phase {}
one sig State {
  var holds: Row -> lone Server,
  var phase: Server -> one Phase,
  -- Requests whose effects are in the server's SQL transaction.
  var applied: Server -> Request
}
-- Publications by key, and clients that have a receipt.
var sig Published, Receipted, Refused in Request {}

fun wanted[s: Server]: set Row { s.group.rows }
fun missing[s: Server]: set Row { wanted[s] - State.holds.s }

pred init {
  no State.holds and no State.applied and no Published and no Receipted and no Refused
  State.phase = Server -> Waiting
}

pred sameReplies { Receipted' = Receipted and Refused' = Refused }
pred samePhases { State.phase' = State.phase and State.applied' = State.applied }

-- The rows that a server may lock next.
fun next_[s: Server]: set Row {
  not keeps[GlobalOrder] implies missing[s]
  else keeps[UnionFirst] implies min[missing[s]]
  -- Each request locks its own rows in order, after the request before it.
  else { r: missing[s] | some q: s.group | r = min[q.rows & missing[s]] }
}

pred lock[s: Server, r: Row] {
  State.phase[s] = Waiting and r in next_[s] and no State.holds[r]
  State.holds' = State.holds + r -> s
  samePhases and sameReplies and Published' = Published
}

pred begin[s: Server] {
  State.phase[s] = Waiting and no missing[s]
  State.phase' = State.phase ++ s -> Locked
  State.applied' = State.applied and State.holds' = State.holds
  sameReplies and Published' = Published
}

fun known: set Request { { q: Request | some p: Published | p.key = q.key } }
-- Each member looks up its operation key in its savepoint, and sees the members before it. Without
-- the rule, the leader looks up all keys before the first savepoint.
fun knownTo[s: Server]: set Request {
  keeps[LookupInSavepoint] implies known + { q: Request | some p: State.applied[s] | p.key = q.key }
  else known
}

-- One request: its savepoint, its checks, its effects.
pred apply[s: Server, q: Request] {
  State.phase[s] = Locked and q in s.group - State.applied[s] - Refused
  q in Invalid implies {
    State.applied' = (keeps[OwnSavepoint] implies State.applied else State.applied - s -> Request)
    Refused' = Refused + q and Receipted' = Receipted
  } else {
    State.applied' = (q in knownTo[s] implies State.applied else State.applied + s -> q)
    Receipted' = (keeps[ReceiptAfterCommit] implies Receipted else Receipted + q)
    Refused' = Refused
  }
  State.phase' = State.phase and State.holds' = State.holds and Published' = Published
}

pred commit[s: Server] {
  State.phase[s] = Locked
  keeps[OwnSavepoint] implies s.group in State.applied[s] + Refused + knownTo[s]
  Published' = Published + State.applied[s]
  Receipted' = Receipted + (s.group - Refused)
  Refused' = Refused
  State.phase' = State.phase ++ s -> Ended
  State.holds' = State.holds - Row -> s and State.applied' = State.applied - s -> Request
}

pred crash[s: Server] {
  State.phase[s] != Ended
  State.phase' = State.phase ++ s -> Ended
  State.holds' = State.holds - Row -> s and State.applied' = State.applied - s -> Request
  sameReplies and Published' = Published
}

pred stutter { State.holds' = State.holds and samePhases and sameReplies and Published' = Published }
pred step {
  stutter or (some s: Server | begin[s] or commit[s] or crash[s])
  or (some s: Server, r: Row | lock[s, r]) or (some s: Server, q: Request | apply[s, q])
}
fact trace { init and always step }

-- Promises

fun waitsFor: Server -> Server {
  { s, t: Server | s != t and State.phase[s] = Waiting and some next_[s]
    and next_[s] in State.holds.t }
}
pred noDeadlock { always no s: Server | s in s.^waitsFor }
pred receiptsAreDurable { always Receipted in known }
pred onePublicationPerKey { always all disj p, q: Published | p.key != q.key }
-- A refusal of one request undoes no other: a server that commits publishes what it applied.
pred refusalsAreApart {
  always all s: Server | commit[s] implies s.group - Invalid in (Published + known)'
}

check NoDeadlock { sound implies noDeadlock } for 3 but 2 Server, 7..7 steps expect 0
check ReceiptsAreDurable { sound implies receiptsAreDurable } for 3 but 2 Server, 7..7 steps expect 0
check OnePublicationPerKey { sound implies onePublicationPerKey } for 3 but 2 Server, 7..7 steps expect 0
check RefusalsAreApart { sound implies refusalsAreApart } for 3 but 2 Server, 7..7 steps expect 0

check TwinLocksInAnyOrder { without[GlobalOrder] implies noDeadlock } for 3 but 2 Server, 7 steps expect 1
check TwinLocksMemberByMember { without[UnionFirst] implies noDeadlock } for 3 but 2 Server, 7 steps expect 1
check TwinReceiptBeforeCommit { without[ReceiptAfterCommit] implies receiptsAreDurable } for 3 but 2 Server, 7 steps expect 1
check TwinKeysLookedUpAtOnce { without[LookupInSavepoint] implies onePublicationPerKey } for 3 but 2 Server, 7 steps expect 1
check TwinSharedSavepoint { without[OwnSavepoint] implies refusalsAreApart } for 3 but 2 Server, 7 steps expect 1

run Everything {
  sound
  eventually #Published > 1
  eventually some s: Server | crash[s]
} for 3 but 2 Server, 8 steps expect 1
