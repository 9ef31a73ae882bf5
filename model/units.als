/*
 * Units: transactions that stay OPEN for a while, and commit or abort together.
 *
 * A branch has a head, which may be OPEN, and a view, which is what readers see. A branch off an
 * OPEN head that a person opened shares it until it ends. Processes may stop between any two steps,
 * and leases may expire at any time.
 */
module units

abstract sig Rule {}
one sig WholeUnit, WholeAbort, SharedHeads, ViewsOnly, TakeoverAborts, NewestEpoch extends Rule {}
one sig Design { rules: set Rule }
pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

sig Branch {}
-- Attempts of one task key.
sig Attempt {}
-- Transactions that commit or abort together; a transaction opened alone is a unit of one.
sig Unit { by: lone Attempt }
-- The unit and the branch of a transaction never change.
sig Transaction { of: lone Unit, home: lone Branch }

var sig Live in Branch {}
var sig Open, Committed, Aborted in Transaction {}
var sig Minted, Newest, Expired in Attempt {}
one sig Catalog { var head, view: Branch -> lone Transaction }

fun used: set Transaction { Open + Committed + Aborted }

pred init {
  no Open and no Aborted and no Minted and no Newest and no Expired
  Catalog.head = Catalog.view
  Catalog.view in Live -> Committed and Committed = Live.(Catalog.view) and no Committed.of
  all b: Live | one Catalog.view[b]
}

pred sameAttempts { Minted' = Minted and Newest' = Newest and Expired' = Expired }
pred sameStates { Open' = Open and Committed' = Committed and Aborted' = Aborted }
pred sameBranches { Live' = Live and Catalog.head' = Catalog.head and Catalog.view' = Catalog.view }

pred fence[u: Unit] {
  some u.by implies u.by in (keeps[NewestEpoch] implies Newest else Minted - Expired)
}

-- Transactions end without a publication: every branch that has one as its head returns to its view.
pred aborts[gone: set Transaction] {
  Aborted' = Aborted + gone and Open' = Open - gone and Committed' = Committed
  let touched = { b: Live | Catalog.head[b] in gone
    and (keeps[SharedHeads] or b in gone.home) } |
    Catalog.head' = Catalog.head ++ (touched <: Catalog.view)
  Catalog.view' = Catalog.view and Live' = Live
}

-- Actions

-- A new attempt aborts what the earlier ones left open.
pred dispatch[a: Attempt] {
  a not in Minted
  Minted' = Minted + a and Newest' = a and Expired' = Expired
  keeps[TakeoverAborts] implies aborts[{ t: Open | some t.of.by }]
    else { sameStates and sameBranches }
}

pred expire[a: Attempt] {
  a in Minted - Expired and Expired' = Expired + a and Minted' = Minted and Newest' = Newest
  sameStates and sameBranches
}

pred begin[t: Transaction] {
  t not in used and some t.of and t.home in Live and Catalog.head[t.home] = Catalog.view[t.home]
  of.(t.of) in Open + (Transaction - used) and fence[t.of]
  Open' = Open + t and Committed' = Committed and Aborted' = Aborted
  Catalog.head' = Catalog.head ++ t.home -> t and Catalog.view' = Catalog.view and Live' = Live
  sameAttempts
}

-- A branch off a branch. It shares an OPEN head that a person opened; else it starts at the view.
pred fork[c, b: Branch] {
  c not in Live and b in Live and Live' = Live + c
  let h = Catalog.head[b], start = ((h in Open and no h.of.by) implies h else Catalog.view[b]) |
    Catalog.head' = Catalog.head ++ c -> start
  Catalog.view' = Catalog.view ++ c -> Catalog.view[b]
  sameStates and sameAttempts
}

-- By its owner, by recovery, or by another writer once the lease of one transaction has ended.
pred abort[t: Transaction] {
  t in Open
  aborts[keeps[WholeAbort] implies of.(t.of) & Open else t]
  sameAttempts
}

-- Commits a unit; every branch that shares a head moves with it.
pred close[t: Transaction] {
  t in Open and fence[t.of]
  let done = (keeps[WholeUnit] implies of.(t.of) & used else t) {
    done in Open
    Catalog.view' = Catalog.view ++ (Live <: Catalog.head :> done)
    Committed' = Committed + done and Open' = Open - done and Aborted' = Aborted
  }
  Live' = Live and Catalog.head' = Catalog.head and sameAttempts
}

pred stutter { sameStates and sameBranches and sameAttempts }

pred step {
  stutter
  or (some a: Attempt | dispatch[a] or expire[a])
  or (some c, b: Branch | fork[c, b])
  or (some t: Transaction | begin[t] or abort[t] or close[t])
}

fact trace { init and always step }

-- Promises

-- A reader sees all transactions of a unit or none.
pred unitsAreWhole {
  always all u: Unit | some of.u & Committed implies of.u & used in Committed
}
-- What is left of an aborted unit cannot be committed, so it does not stay OPEN either.
pred unitsEndTogether { always all u: Unit | some of.u & Aborted implies no of.u & Open }
pred headsAreNotAborted { always no Live.(Catalog.head) & Aborted }
fun shown: Branch -> Transaction { keeps[ViewsOnly] implies Catalog.view else Catalog.head }
pred readersSeeCommitted { always Live.shown in Committed }
pred onlyNewestEpochsCommit {
  always all t: Committed' - Committed | some t.of.by implies t.of.by in Newest
}
-- A branch does not wait for an attempt that was superseded.
pred supersededHoldNoBranch {
  always no Live.(Catalog.head) & Open & of.(by.(Minted - Newest))
}

check UnitsAreWhole { sound implies unitsAreWhole } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5..5 steps expect 0
check UnitsEndTogether { sound implies unitsEndTogether } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5..5 steps expect 0
check HeadsAreNotAborted { sound implies headsAreNotAborted } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5..5 steps expect 0
check ReadersSeeCommitted { sound implies readersSeeCommitted } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5..5 steps expect 0
check OnlyNewestEpochsCommit { sound implies onlyNewestEpochsCommit } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5..5 steps expect 0
check SupersededHoldNoBranch { sound implies supersededHoldNoBranch } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5..5 steps expect 0

check TwinUnitInParts { without[WholeUnit] implies unitsAreWhole } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5 steps expect 1
check TwinAbortedInParts { without[WholeAbort] implies unitsEndTogether } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5 steps expect 1
check TwinForkOfAbortedUnit { without[SharedHeads] implies headsAreNotAborted } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5 steps expect 1
check TwinHeadInsteadOfView { without[ViewsOnly] implies readersSeeCommitted } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5 steps expect 1
check TwinLeaseAsPermission { without[NewestEpoch] implies onlyNewestEpochsCommit } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5 steps expect 1
check TwinTakeoverLeavesOpen { without[TakeoverAborts] implies supersededHoldNoBranch } for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5 steps expect 1

run Everything {
  sound
  eventually some u: Unit | #(of.u & Committed) > 1
  eventually some c, b: Branch | fork[c, b]
} for 3 but 4 Transaction, 2 Unit, 2 Attempt, 5 steps expect 1
