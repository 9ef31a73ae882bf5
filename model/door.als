/*
 * The door: views of branches change only by `publish`, one atomic step.
 *
 * Each rule that the implementation checks is an atom of `Rule`. A design that keeps all rules is
 * sound: every check below holds. A broken twin leaves out one rule, and the solver must find a
 * counterexample; so the model shows what each rule is for.
 *
 * The network may lose replies and repeat requests, processes may stop between any two steps, and
 * leases may expire at any time, whatever the clock says. docs/model.md maps actions to functions.
 * `units` has transactions that stay OPEN, and `holds` has builds.
 */
module door

abstract sig Rule {}
one sig OperationFirst, NewestEpoch, FenceAtDoor, ExpectedView, ExpectedReads extends Rule {}
one sig Design { rules: set Rule }

pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

sig Branch {}
sig Key {}
sig Attempt { key: one Key }
-- A request with an idempotency key, validated against the views of `reads`.
sig Write { attempt: lone Attempt, target: one Branch, reads: set Branch } { target not in reads }
-- What a writer prepares, and the views that it saw. A request that is sent again is prepared again.
-- The fields never change, so they are not variable.
sig Transaction { of: lone Write, saw: Branch -> lone Transaction }

-- Parents of a transaction: the view of its branch that its writer saw.
fun parent: Transaction -> Transaction {
  { t, p: Transaction | some t.of and p = t.saw[t.of.target] }
}
fun history[t: Transaction]: set Transaction { t.*parent }

var sig Prepared, Committed in Transaction {}
-- Requests that have been published; they are recorded under their keys.
var sig Recorded in Write {}
var sig Minted, Newest in Attempt {}
-- Attempts whose lease has expired; this only allows others to take over.
var sig Expired in Attempt {}
one sig Catalog { var view: Branch -> lone Transaction }

pred init {
  no Prepared and no Recorded and no Minted and no Newest and no Expired
  Committed = Branch.(Catalog.view) and no Committed.of
}

pred sameAttempts { Minted' = Minted and Newest' = Newest and Expired' = Expired }
pred sameViews { Catalog.view' = Catalog.view and Committed' = Committed and Recorded' = Recorded }

-- Actions

-- A new attempt of a key. Its epoch is higher than those of the earlier ones.
pred dispatch[a: Attempt] {
  a not in Minted
  Minted' = Minted + a and Newest' = Newest - key.(a.key) + a and Expired' = Expired
  Prepared' = Prepared and sameViews
}

pred expire[a: Attempt] {
  a in Minted - Expired and Expired' = Expired + a
  Minted' = Minted and Newest' = Newest and Prepared' = Prepared and sameViews
}

pred fence[w: Write] {
  some w.attempt implies w.attempt in (keeps[NewestEpoch] implies Newest else Minted - Expired)
}

pred prepare[t: Transaction] {
  t not in Prepared + Committed and some t.of and fence[t.of]
  let read = t.of.target + t.of.reads | t.saw = read <: Catalog.view
  Prepared' = Prepared + t and sameViews and sameAttempts
}

-- Requests reach the door any number of times. It replies with a confirmation or a refusal; the
-- client may receive neither.
pred may[t: Transaction] {
  t in Prepared - Committed
  keeps[FenceAtDoor] implies fence[t.of]
  keeps[ExpectedView] implies Catalog.view[t.of.target] = t.saw[t.of.target]
  keeps[ExpectedReads] implies all b: t.of.reads | Catalog.view[b] = t.saw[b]
}

pred publish[t: Transaction] {
  may[t]
  keeps[OperationFirst] implies t.of not in Recorded
  Catalog.view' = Catalog.view ++ t.of.target -> t
  Committed' = Committed + t and Recorded' = Recorded + t.of
  Prepared' = Prepared and sameAttempts
}

-- The reply to a request that does not pass the checks.
pred refused[t: Transaction] {
  t in Prepared and not may[t]
  keeps[OperationFirst] implies t.of not in Recorded
}

-- Back to an earlier transaction of the branch.
pred reset[b: Branch, t: Transaction] {
  t in history[Catalog.view[b]] - Catalog.view[b]
  Catalog.view' = Catalog.view ++ b -> t
  Committed' = Committed and Recorded' = Recorded and Prepared' = Prepared and sameAttempts
}

pred stutter { Prepared' = Prepared and sameViews and sameAttempts }

pred step {
  stutter
  or (some a: Attempt | dispatch[a] or expire[a])
  or (some t: Transaction | prepare[t] or publish[t])
  or (some b: Branch, t: Transaction | reset[b, t])
}

fact trace { init and always step }

-- Promises

pred onePublicationPerOperation { always all t: Transaction | publish[t] implies t.of not in Recorded }
pred refusalsAreTrue { always all t: Transaction | refused[t] implies t.of not in Recorded }
pred onlyNewestEpochsPublish {
  always all t: Transaction | publish[t] and some t.of.attempt implies t.of.attempt in Newest
}
-- A published view continues the one before it, except by a reset.
pred noUpdateIsLost {
  always all t: Transaction | publish[t] implies Catalog.view[t.of.target] in history[t]
}
-- No two writers each miss what the other wrote.
pred noWriteSkew {
  always no disj s, t: Branch.(Catalog.view) & Committed {
    some t.of.target & s.of.reads and some s.of.target & t.of.reads
    t not in history[s.saw[t.of.target]] and s not in history[t.saw[s.of.target]]
  }
}

-- Checks: the sound design, then one broken twin for each rule

check OnePublicationPerOperation { sound implies onePublicationPerOperation } for 2 but 5 Transaction, 6 steps expect 0
check RefusalsAreTrue { sound implies refusalsAreTrue } for 2 but 5 Transaction, 6 steps expect 0
check OnlyNewestEpochsPublish { sound implies onlyNewestEpochsPublish } for 2 but 5 Transaction, 6 steps expect 0
check NoUpdateIsLost { sound implies noUpdateIsLost } for 2 but 5 Transaction, 6 steps expect 0
check NoWriteSkew { sound implies noWriteSkew } for 2 but 5 Transaction, 6 steps expect 0

check TwinOperationLast { without[OperationFirst] implies refusalsAreTrue } for 2 but 5 Transaction, 6 steps expect 1
check TwinOperationPublishedAgain { without[OperationFirst] implies onePublicationPerOperation } for 2 but 5 Transaction, 6 steps expect 1
check TwinLeaseAsPermission { without[NewestEpoch] implies onlyNewestEpochsPublish } for 2 but 5 Transaction, 6 steps expect 1
check TwinFencedWhenPrepared { without[FenceAtDoor] implies onlyNewestEpochsPublish } for 2 but 5 Transaction, 6 steps expect 1
check TwinViewNotExpected { without[ExpectedView] implies noUpdateIsLost } for 2 but 5 Transaction, 6 steps expect 1
check TwinReadsNotExpected { without[ExpectedReads] implies noWriteSkew } for 2 but 5 Transaction, 6 steps expect 1

-- The model is not empty: a run in which everything happens.
run Everything {
  sound
  eventually #Recorded > 1
  eventually some b: Branch, t: Transaction | reset[b, t]
} for 2 but 5 Transaction, 6 steps expect 1
