/*
 * The door: views of branches change only by `publish`, one atomic step.
 *
 * Each rule that the implementation checks is an atom of `Rule`. A design that keeps all rules is
 * sound: every check below holds. A broken twin leaves out one rule, and the solver must find a
 * counterexample; so the model shows what each rule is for.
 *
 * The network may lose replies and repeat requests, processes may stop between any two steps, and
 * leases may expire at any time, whatever the clock says. docs/model.md maps actions to functions.
 */
module door

abstract sig Rule {}
one sig OperationFirst, NewestEpoch, ExpectedView, ExpectedReads, WholeUnit, SharedHeads,
  ViewsOnly, HeldKeys extends Rule {}
one sig Design { rules: set Rule }

pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

-- Nouns

sig Branch {}
-- What a transaction shows. Results of one build key are equal, so a content stands for its key.
sig Content {}
sig Transaction { content: one Content }
-- Transactions that commit or abort together; a transaction opened alone is a unit of one.
sig Unit { by: lone Attempt }
sig Key {}
sig Attempt { key: one Key }

-- A request with an idempotency key.
abstract sig Operation { attempt: lone Attempt }
sig Close extends Operation { unit: one Unit } { attempt = unit.by }
-- Opens and commits one transaction, validated against the views of `reads`.
sig Write extends Operation { target: one Branch, reads: set Branch, adds: one Transaction } {
  target not in reads
}
sig Publication { of: lone Operation, moves: Branch -> lone Transaction }

-- State

var sig Live in Branch {}
var sig Open, Committed, Aborted in Transaction {}
var sig Log in Publication {}
var sig Minted in Attempt {}
-- Attempts whose lease has expired; this only allows others to take over.
var sig Expired in Attempt {}
one sig Catalog {
  var head, view: Branch -> lone Transaction,
  var parent: Transaction -> lone Transaction,
  var member: Transaction -> lone Unit,
  var home: Transaction -> lone Branch,
  var newest: Key -> lone Attempt,
  var held: Branch -> Content,
  -- The views that a writer saw when it prepared.
  var saw: Write -> Branch -> lone Transaction
}

fun used: set Transaction { Open + Committed + Aborted }
fun recorded: set Operation { Log.of }
fun history[t: Transaction]: set Transaction { t.*(Catalog.parent) }

pred init {
  no Open and no Aborted and no Log and no Minted and no Expired
  no Catalog.parent and no Catalog.member and no Catalog.home and no Catalog.newest
  no Catalog.held and no Catalog.saw
  Catalog.head = Catalog.view
  Catalog.view in Live -> Committed and Committed = Live.(Catalog.view)
  all b: Live | one Catalog.view[b]
}

-- Fences

pred passes[a: lone Attempt] {
  some a implies (keeps[NewestEpoch] implies Catalog.newest[a.key] = a else a not in Expired)
}

-- Effects

pred sameAttempts { Minted' = Minted and Expired' = Expired and Catalog.newest' = Catalog.newest }
pred samePreparations { Catalog.saw' = Catalog.saw }
pred sameHolds { Catalog.held' = Catalog.held }
pred sameUnits { Catalog.member' = Catalog.member and Catalog.home' = Catalog.home }
pred sameStates { Open' = Open and Committed' = Committed and Aborted' = Aborted }
pred sameBranches { Live' = Live and Catalog.head' = Catalog.head and Catalog.view' = Catalog.view }
pred sameLog { Log' = Log }

pred logs[o: lone Operation, moved: Branch -> Transaction] {
  some p: Publication - Log | p.of = o and p.moves = moved and Log' = Log + p
}

-- Transactions close without a publication: every branch that has one as its head returns.
pred aborts[gone: set Transaction] {
  Aborted' = Aborted + gone and Open' = Open - gone and Committed' = Committed
  let touched = { b: Live | Catalog.head[b] in gone
    and (keeps[SharedHeads] or b in gone.(Catalog.home)) } |
    Catalog.head' = Catalog.head ++ { b: touched, t: Catalog.view[b] }
  Catalog.view' = Catalog.view and Live' = Live and Catalog.parent' = Catalog.parent
  sameUnits and sameHolds and samePreparations and sameLog
}

-- Actions

pred dispatch[a: Attempt] {
  a not in Minted
  Minted' = Minted + a and Expired' = Expired
  Catalog.newest' = Catalog.newest ++ a.key -> a
  aborts[{ t: Open | t.(Catalog.member).by.key = a.key }]
}

pred expire[a: Attempt] {
  a in Minted - Expired and Expired' = Expired + a
  Minted' = Minted and Catalog.newest' = Catalog.newest and Catalog.parent' = Catalog.parent
  sameStates and sameBranches and sameUnits and sameHolds and samePreparations and sameLog
}

pred begin[t: Transaction, b: Branch, u: Unit] {
  t not in used and b in Live and Catalog.head[b] = Catalog.view[b]
  (Catalog.member).u in Open
  passes[u.by] and some u.by implies u.by in Minted
  Open' = Open + t and Committed' = Committed and Aborted' = Aborted
  Catalog.head' = Catalog.head ++ b -> t and Catalog.view' = Catalog.view and Live' = Live
  Catalog.parent' = Catalog.parent + t -> Catalog.view[b]
  Catalog.member' = Catalog.member + t -> u and Catalog.home' = Catalog.home + t -> b
  sameAttempts and sameHolds and samePreparations and sameLog
}

-- A branch off a branch. It shares an OPEN head that a person opened; else it starts at the view.
pred fork[c, b: Branch] {
  c not in Live and b in Live and no c.(Log.moves) and c not in Write.target
  Live' = Live + c
  let h = Catalog.head[b] | (h in Open and no h.(Catalog.member).by)
    implies Catalog.head' = Catalog.head ++ c -> h
    else Catalog.head' = Catalog.head ++ c -> Catalog.view[b]
  Catalog.view' = Catalog.view ++ c -> Catalog.view[b]
  Catalog.parent' = Catalog.parent
  logs[none, c -> Catalog.view[b]]
  sameStates and sameUnits and sameAttempts and sameHolds and samePreparations
}

pred abort[u: Unit] {
  some (Catalog.member).u & Open
  aborts[(Catalog.member).u & Open] and sameAttempts
}

pred prepare[w: Write] {
  no Catalog.saw[w] and w not in recorded
  Catalog.saw' = Catalog.saw + { x: w, b: (w.target + w.reads) & Live, t: Catalog.view[b] }
  Catalog.parent' = Catalog.parent
  sameStates and sameBranches and sameUnits and sameAttempts and sameHolds and sameLog
}

-- Requests reach the door any number of times. It replies with a confirmation or a refusal; the
-- client may receive neither.

pred mayClose[o: Close] {
  passes[o.attempt] and some (Catalog.member).(o.unit) & Open
  keeps[WholeUnit] implies (Catalog.member).(o.unit) in Open
}

pred mayWrite[w: Write] {
  passes[w.attempt] and (some w.attempt implies w.attempt in Minted)
  w.adds not in used and w.target in Live and some Catalog.saw[w]
  Catalog.head[w.target] not in Open
  keeps[ExpectedView] implies Catalog.view[w.target] = Catalog.saw[w][w.target]
  keeps[ExpectedReads] implies all b: w.reads | Catalog.view[b] = Catalog.saw[w][b]
}

pred may[o: Operation] { o in Close implies mayClose[o] else mayWrite[o] }

pred close[o: Close] {
  let unit_ = (Catalog.member).(o.unit) | some one_: unit_ & Open |
    let done = (keeps[WholeUnit] implies unit_ else one_),
        moved = { b: Live, t: done | Catalog.head[b] = t } {
      Catalog.view' = Catalog.view ++ moved and Catalog.head' = Catalog.head
      Committed' = Committed + done and Open' = Open - done and Aborted' = Aborted
      logs[o, moved]
    }
  Live' = Live and Catalog.parent' = Catalog.parent
  sameUnits and sameAttempts and sameHolds and samePreparations
}

pred write[w: Write] {
  Committed' = Committed + w.adds and Open' = Open and Aborted' = Aborted
  Catalog.parent' = Catalog.parent + w.adds -> Catalog.saw[w][w.target]
  Catalog.view' = Catalog.view ++ w.target -> w.adds
  Catalog.head' = Catalog.head ++ w.target -> w.adds
  logs[w, w.target -> w.adds]
  Live' = Live and sameUnits and sameAttempts and sameHolds and samePreparations
}

pred confirm[o: Operation] {
  o in recorded and (keeps[OperationFirst] or may[o])
  stutter
}

pred refuse[o: Operation] {
  keeps[OperationFirst] implies o not in recorded
  not may[o]
  stutter
}

pred publish[o: Operation] {
  keeps[OperationFirst] implies o not in recorded
  may[o]
  o in Close implies close[o] else write[o]
}

-- Builds and resets

-- A build publishes a result, computed or adopted from another branch.
pred build[b: Branch, t: Transaction] {
  t not in used and b in Live and Catalog.head[b] not in Open and t not in Write.adds
  keeps[HeldKeys] implies t.content not in Catalog.held[b]
  sameHolds
  adds[b, t]
}

pred force[b: Branch, t: Transaction] {
  t not in used and b in Live and Catalog.head[b] not in Open and t not in Write.adds
  Catalog.held' = Catalog.held - b -> t.content
  adds[b, t]
}

pred adds[b: Branch, t: Transaction] {
  Committed' = Committed + t and Open' = Open and Aborted' = Aborted
  Catalog.parent' = Catalog.parent + t -> Catalog.view[b]
  Catalog.view' = Catalog.view ++ b -> t and Catalog.head' = Catalog.head ++ b -> t
  logs[none, b -> t]
  Live' = Live and sameUnits and sameAttempts and samePreparations
}

fun removed[b: Branch, t: Transaction]: set Content {
  (history[Catalog.view[b]] - history[t]).content - t.content
}

pred reset[b: Branch, t: Transaction] {
  b in Live and Catalog.head[b] not in Open
  t in history[Catalog.view[b]] - Catalog.view[b]
  Catalog.held' = Catalog.held + b -> removed[b, t]
  moves_[b, t]
}

-- Back to a transaction that a reset removed.
pred resetForward[b: Branch, t: Transaction] {
  b in Live and Catalog.head[b] not in Open and t in Committed
  Catalog.view[b] in history[t] - t
  Catalog.held' = Catalog.held - b -> history[t].content
  moves_[b, t]
}

pred moves_[b: Branch, t: Transaction] {
  Catalog.view' = Catalog.view ++ b -> t and Catalog.head' = Catalog.head ++ b -> t
  logs[none, b -> t]
  Live' = Live and Catalog.parent' = Catalog.parent
  sameStates and sameUnits and sameAttempts and samePreparations
}

pred stutter {
  Catalog.parent' = Catalog.parent
  sameStates and sameBranches and sameUnits and sameAttempts and sameHolds and samePreparations
  sameLog
}

pred step {
  stutter
  or (some a: Attempt | dispatch[a] or expire[a])
  or (some t: Transaction, b: Branch, u: Unit | begin[t, b, u])
  or (some c, b: Branch | fork[c, b])
  or (some u: Unit | abort[u])
  or (some w: Write | prepare[w])
  or (some o: Operation | publish[o])
  or (some b: Branch, t: Transaction | build[b, t] or force[b, t] or reset[b, t] or resetForward[b, t])
}

fact trace { init and always step }

-- Promises

pred onePublicationPerOperation { always all disj p, q: Log | some p.of implies p.of != q.of }
pred refusalsAreTrue { always all o: Operation | refuse[o] implies o not in recorded }
pred onlyNewestEpochsPublish {
  always all p: Log' - Log | let a = p.of.attempt | some a implies Catalog.newest[a.key] = a
}
pred unitsAreWhole {
  always all u: Unit | let unit_ = (Catalog.member).u |
    some unit_ & Committed implies unit_ in Committed
}
-- A published view continues the one before it, except by a reset.
pred noUpdateIsLost {
  always all b: Live | let was = Catalog.view[b], now = Catalog.view'[b] |
    was in historyAfter[now] or (some t: Transaction | reset[b, t])
}
fun historyAfter[t: Transaction]: set Transaction { t.*(Catalog.parent') }
-- No two writers each miss what the other wrote.
pred noWriteSkew {
  always no disj v, w: recorded & Write {
    v.target in w.reads and w.target in v.reads
    Catalog.saw[v][w.target] = w.adds.(Catalog.parent)
    Catalog.saw[w][v.target] = v.adds.(Catalog.parent)
  }
}
fun shown: Branch -> Transaction { keeps[ViewsOnly] implies Catalog.view else Catalog.head }
pred readersSeeCommitted { always Live.shown in Committed }
pred headsAreNotAborted { always no Live.(Catalog.head) & Aborted }
-- What a reset removed comes back by a build only after it was forced or reset forward.
pred resetsHold {
  always all b: Branch, t: Transaction | build[b, t] implies
    not (not released[b, t.content] since resetRemoved[b, t.content])
}
pred resetRemoved[b: Branch, c: Content] { some x: Transaction | reset[b, x] and c in removed[b, x] }
pred released[b: Branch, c: Content] {
  some x: Transaction |
    (force[b, x] and x.content = c) or (resetForward[b, x] and c in history[x].content)
}

-- Checks: the sound design, then one broken twin for each rule

check OnePublicationPerOperation { sound implies onePublicationPerOperation } for 2 but 3 Publication, 4 Transaction, 6 steps expect 0
check RefusalsAreTrue { sound implies refusalsAreTrue } for 2 but 3 Publication, 4 Transaction, 6 steps expect 0
check OnlyNewestEpochsPublish { sound implies onlyNewestEpochsPublish } for 2 but 3 Publication, 4 Transaction, 6 steps expect 0
check UnitsAreWhole { sound implies unitsAreWhole } for 2 but 3 Publication, 4 Transaction, 6 steps expect 0
check NoUpdateIsLost { sound implies noUpdateIsLost } for 2 but 3 Publication, 4 Transaction, 6 steps expect 0
check NoWriteSkew { sound implies noWriteSkew } for 2 but 3 Publication, 4 Transaction, 6 steps expect 0
check ReadersSeeCommitted { sound implies readersSeeCommitted } for 2 but 3 Publication, 4 Transaction, 6 steps expect 0
check HeadsAreNotAborted { sound implies headsAreNotAborted } for 2 but 3 Publication, 4 Transaction, 6 steps expect 0
check ResetsHold { sound implies resetsHold } for 2 but 3 Publication, 4 Transaction, 6 steps expect 0

check TwinOperationLast { without[OperationFirst] implies refusalsAreTrue } for 2 but 3 Publication, 4 Transaction, 6 steps expect 1
check TwinLeaseAsPermission { without[NewestEpoch] implies onlyNewestEpochsPublish } for 2 but 3 Publication, 4 Transaction, 6 steps expect 1
check TwinViewNotExpected { without[ExpectedView] implies noUpdateIsLost } for 2 but 3 Publication, 4 Transaction, 6 steps expect 1
check TwinReadsNotExpected { without[ExpectedReads] implies noWriteSkew } for 2 but 3 Publication, 4 Transaction, 6 steps expect 1
check TwinUnitInParts { without[WholeUnit] implies unitsAreWhole } for 2 but 3 Publication, 4 Transaction, 6 steps expect 1
check TwinForkOfAbortedUnit { without[SharedHeads] implies headsAreNotAborted } for 2 but 3 Publication, 4 Transaction, 6 steps expect 1
check TwinHeadInsteadOfView { without[ViewsOnly] implies readersSeeCommitted } for 2 but 3 Publication, 4 Transaction, 6 steps expect 1
check TwinResetNotHeld { without[HeldKeys] implies resetsHold } for 2 but 3 Publication, 4 Transaction, 6 steps expect 1

-- The model is not empty: a run in which everything happens.
run Everything {
  sound
  eventually some o: Close | publish[o]
  eventually some o: Write | publish[o]
  eventually some c, b: Branch | fork[c, b]
} for 2 but 3 Publication, 4 Transaction, 6 steps expect 1
