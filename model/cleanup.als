/*
 * Cleanup beside writers: no object that a view needs is ever deleted.
 *
 * Objects are stored under their digest, so a writer may reuse one that cleanup is about to delete.
 * Cleanup marks, condemns and sweeps in separate steps and may stop between any two of them.
 */
module cleanup

abstract sig Rule {}
one sig DoorRejectsCondemned, CheckedAtCondemning, SecondMark, MarkOutlivesBytes,
  DeletedBranchesAreRoots extends Rule {}
one sig Design { rules: set Rule }
pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

sig Object {}
sig Version { objects: some Object }
sig Branch {}
sig Writer { writes: one Version, on: one Branch }

var sig Stored, Condemned, Candidate, Planned in Object {}
-- Writers that have found or stored all objects of their version.
var sig Ready, Done in Writer {}
var sig Live, Deleted in Branch {}
one sig Catalog { var view: Branch -> lone Version }

-- Objects that a branch shows, or would show again after it is restored.
fun needed: set Object {
  (Live + (keeps[DeletedBranchesAreRoots] implies Deleted else none)).(Catalog.view).objects
}

pred init {
  no Condemned and no Candidate and no Planned and no Ready and no Done and no Deleted
  Live = Branch and Live.(Catalog.view).objects in Stored
}

pred sameMarks { Candidate' = Candidate and Planned' = Planned }
pred sameWriters { Ready' = Ready and Done' = Done }
pred sameBranches { Live' = Live and Deleted' = Deleted and Catalog.view' = Catalog.view }
pred sameObjects { Stored' = Stored and Condemned' = Condemned }

-- Actions

-- A writer finds its objects, or stores them; it takes back condemned ones whose bytes it stores.
pred find[w: Writer] {
  w not in Ready + Done
  let missing = w.writes.objects & (Condemned + (Object - Stored)) |
    Stored' = Stored + missing and Condemned' = Condemned - missing
  Ready' = Ready + w and Done' = Done
  sameMarks and sameBranches
}

pred publish[w: Writer] {
  w in Ready and w.on in Live
  keeps[DoorRejectsCondemned] implies no w.writes.objects & Condemned
  Catalog.view' = Catalog.view ++ w.on -> w.writes and Live' = Live and Deleted' = Deleted
  Ready' = Ready - w and Done' = Done + w
  sameObjects and sameMarks
}

pred deleteBranch[b: Branch] {
  b in Live and Live' = Live - b and Deleted' = Deleted + b and Catalog.view' = Catalog.view
  sameObjects and sameMarks and sameWriters
}

pred restoreBranch[b: Branch] {
  b in Deleted and Live' = Live + b and Deleted' = Deleted - b and Catalog.view' = Catalog.view
  keeps[DoorRejectsCondemned] implies no Catalog.view[b].objects & Condemned
  sameObjects and sameMarks and sameWriters
}

-- Deleted branches are forgotten after the retention time.
pred forgetBranch[b: Branch] {
  b in Deleted and Deleted' = Deleted - b and Live' = Live
  Catalog.view' = Catalog.view - b -> Version
  sameObjects and sameMarks and sameWriters
}

pred mark {
  Candidate' = Stored - Condemned - needed and Planned' = Planned
  sameObjects and sameBranches and sameWriters
}

pred condemn {
  let gone = (keeps[CheckedAtCondemning] implies Candidate - needed else Candidate) |
    Condemned' = Condemned + gone
  Stored' = Stored and Candidate' = none and Planned' = Planned
  sameBranches and sameWriters
}

pred plan {
  Planned' = Condemned & Stored and Candidate' = Candidate
  sameObjects and sameBranches and sameWriters
}

pred sweep {
  let gone = (keeps[SecondMark] implies Planned & Condemned - needed else Planned) {
    Stored' = Stored - gone
    Condemned' = (keeps[MarkOutlivesBytes] implies Condemned else Condemned - gone)
  }
  Planned' = none and Candidate' = Candidate
  sameBranches and sameWriters
}

pred stutter { sameObjects and sameMarks and sameBranches and sameWriters }

pred step {
  stutter or mark or condemn or plan or sweep
  or (some w: Writer | find[w] or publish[w])
  or (some b: Branch | deleteBranch[b] or restoreBranch[b] or forgetBranch[b])
}

fact trace { init and always step }

-- Promises

pred viewsAreStored { always Live.(Catalog.view).objects in Stored }
pred viewsAreNotCondemned { always no Live.(Catalog.view).objects & Condemned }
pred retainedBranchesCanBeRestored { always Deleted.(Catalog.view).objects in Stored }

check ViewsAreStored { sound implies viewsAreStored } for 3 but 8 steps expect 0
check ViewsAreNotCondemned { sound implies viewsAreNotCondemned } for 3 but 8 steps expect 0
check RetainedBranchesCanBeRestored { sound implies retainedBranchesCanBeRestored } for 3 but 8 steps expect 0

check TwinCondemnedPublished { without[DoorRejectsCondemned] implies viewsAreStored } for 3 but 8 steps expect 1
check TwinCondemnedUnchecked { without[CheckedAtCondemning] implies viewsAreNotCondemned } for 3 but 8 steps expect 1
check TwinSweepWithoutSecondMark { without[SecondMark] implies viewsAreStored } for 3 but 8 steps expect 1
check TwinMarkForgottenAtSweep { without[MarkOutlivesBytes] implies viewsAreStored } for 3 but 8 steps expect 1
check TwinDeletedBranchesNotKept { without[DeletedBranchesAreRoots] implies retainedBranchesCanBeRestored } for 3 but 8 steps expect 1

run Everything {
  sound
  eventually sweep and some Object - Stored
  eventually some w: Writer | publish[w]
  eventually some b: Branch | restoreBranch[b]
} for 3 but 8 steps expect 1
