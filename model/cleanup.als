/*
 * Cleanup beside writers: no object that a view needs is ever deleted.
 *
 * A version names objects. Objects are stored under their digest, so a writer may reuse one that
 * cleanup is about to delete. Cleanup condemns versions, then the objects that no version needs,
 * and sweeps what an earlier cleanup condemned. It may stop between any two steps, and several
 * cleanups may run at once.
 */
module cleanup

abstract sig Rule {}
one sig DoorRejectsCondemned, CheckedAtCondemning, SparedAfterCondemning, SecondMark,
  ClaimedUnchanged, SweepLock, BytesBeforeSparing, MarkOutlivesBytes, DeletedBranchesAreRoots
  extends Rule {}
one sig Design { rules: set Rule }
pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

sig Object {}
sig Version { objects: some Object }
sig Branch {}
sig Writer { writes: one Version, on: one Branch }

-- Versions that were published; those that a mark phase found unneeded; condemned ones.
var sig Known, Unneeded, Old in Version {}
-- Condemned has the objects with a mark, swept or not. Unconfirmed are those that were condemned
-- and then not yet compared with the versions again.
var sig Stored, Candidate, Condemned, Unconfirmed, Planned, Claimed in Object {}
-- Writers that have found or stored all objects of their version.
var sig Ready, Done in Writer {}
var sig Live, Deleted in Branch {}
one sig Catalog { var view: Branch -> lone Version }

-- Versions that a branch shows, or would show again after it is restored.
fun retained: set Version {
  (Live + (keeps[DeletedBranchesAreRoots] implies Deleted else none)).(Catalog.view)
}
fun needed: set Object { (Known - Old).objects }

-- Any store that was cleaned before: some branches are deleted, and some objects have marks.
pred init {
  no Unneeded and no Old and no Candidate and no Unconfirmed and no Planned and no Claimed
  no Ready and no Done and no Live & Deleted and Live + Deleted = Branch
  Known = Branch.(Catalog.view) and Known.objects in Stored - Condemned
}

pred sameVersions { Known' = Known and Unneeded' = Unneeded and Old' = Old }
pred sameLists { Candidate' = Candidate and Unconfirmed' = Unconfirmed and Planned' = Planned }
pred sameObjects { Stored' = Stored and Condemned' = Condemned and Claimed' = Claimed }
pred sameWriters { Ready' = Ready and Done' = Done }
pred sameBranches { Live' = Live and Deleted' = Deleted and Catalog.view' = Catalog.view }

-- Writers

-- A writer reuses stored objects, condemned or not, and stores the others.
pred find[w: Writer] {
  w not in Ready + Done
  Stored' = Stored + w.writes.objects and Condemned' = Condemned and Claimed' = Claimed
  Ready' = Ready + w and Done' = Done
  sameLists and sameVersions and sameBranches
}

-- Takes the marks of its objects back. It stores missing ones again, while no sweep runs.
pred spareOwn[w: Writer] {
  w in Ready and some w.writes.objects & Condemned
  keeps[SweepLock] implies no Claimed
  Stored' = (keeps[BytesBeforeSparing] implies Stored + w.writes.objects else Stored)
  unmarks[w.writes.objects]
  Claimed' = Claimed and Candidate' = Candidate
  sameVersions and sameWriters and sameBranches
}

-- An object that is condemned again has another time of condemnation, so a sweep leaves it.
pred unmarks[some_: set Object] {
  Condemned' = Condemned - some_ and Unconfirmed' = Unconfirmed - some_
  Planned' = (keeps[ClaimedUnchanged] implies Planned - some_ else Planned)
}

pred publish[w: Writer] {
  w in Ready and w.on in Live
  keeps[DoorRejectsCondemned] implies no w.writes.objects & Condemned
  Catalog.view' = Catalog.view ++ w.on -> w.writes and Live' = Live and Deleted' = Deleted
  -- Each publication stages a version of its own.
  Known' = Known + w.writes and Old' = Old - w.writes and Unneeded' = Unneeded - w.writes
  Ready' = Ready - w and Done' = Done + w
  sameObjects and sameLists
}

-- A reset or an adoption: the branch shows an earlier version again.
pred reset[b: Branch, v: Version] {
  b in Live and v in Known and Catalog.view' = Catalog.view ++ b -> v
  keeps[DoorRejectsCondemned] implies v not in Old
  Live' = Live and Deleted' = Deleted
  sameObjects and sameLists and sameVersions and sameWriters
}

pred deleteBranch[b: Branch] {
  b in Live and Live' = Live - b and Deleted' = Deleted + b and Catalog.view' = Catalog.view
  sameObjects and sameLists and sameVersions and sameWriters
}

pred restoreBranch[b: Branch] {
  b in Deleted and Live' = Live + b and Deleted' = Deleted - b and Catalog.view' = Catalog.view
  keeps[DoorRejectsCondemned] implies Catalog.view[b] not in Old
  sameObjects and sameLists and sameVersions and sameWriters
}

-- Deleted branches are forgotten after the retention time.
pred forgetBranch[b: Branch] {
  b in Deleted and Deleted' = Deleted - b and Live' = Live
  Catalog.view' = Catalog.view - b -> Version
  sameObjects and sameLists and sameVersions and sameWriters
}

-- Cleanup

pred markVersions {
  Unneeded' = Known - Old - retained and Known' = Known and Old' = Old
  sameObjects and sameLists and sameWriters and sameBranches
}

-- Under the lock of the counter, which every publication takes.
pred condemnVersions {
  Old' = Old + (keeps[CheckedAtCondemning] implies Unneeded - retained else Unneeded)
  Known' = Known and Unneeded' = none
  sameObjects and sameLists and sameWriters and sameBranches
}

-- Lists the stored objects, and reads which ones are needed.
pred mark {
  Candidate' = Stored - Condemned - needed
  Planned' = Condemned & Stored - (keeps[SecondMark] implies needed else none)
  Unconfirmed' = Unconfirmed
  sameObjects and sameVersions and sameWriters and sameBranches
}

-- Publications since the mark phase may use some of them.
pred condemn {
  Condemned' = Condemned + Candidate and Unconfirmed' = Unconfirmed + (Candidate - Condemned)
  Candidate' = none and Planned' = Planned and Stored' = Stored and Claimed' = Claimed
  sameVersions and sameWriters and sameBranches
}

-- Takes back the marks of objects that came into use before they were condemned. A cleanup that
-- stops before this leaves it to the next one.
pred spareUsed {
  let used = (keeps[SparedAfterCondemning] implies needed else none) {
    Condemned' = Condemned - used
    Planned' = (keeps[ClaimedUnchanged] implies Planned - used else Planned)
  }
  Unconfirmed' = none and Stored' = Stored and Claimed' = Claimed and Candidate' = Candidate
  sameVersions and sameWriters and sameBranches
}

-- Under the sweep lock: claim what was planned and still has its mark, then delete the bytes.
pred claim {
  no Claimed and some Planned
  Claimed' = Planned & (keeps[ClaimedUnchanged] implies Condemned else Object)
  Planned' = none and Candidate' = Candidate and Unconfirmed' = Unconfirmed
  Stored' = Stored and Condemned' = Condemned
  sameVersions and sameWriters and sameBranches
}

pred sweep[o: Object] {
  o in Claimed and Stored' = Stored - o and Claimed' = Claimed - o
  Condemned' = (keeps[MarkOutlivesBytes] implies Condemned else Condemned - o)
  sameLists and sameVersions and sameWriters and sameBranches
}

-- The process stops: its lock is released.
pred crash {
  some Claimed and Claimed' = none and Stored' = Stored and Condemned' = Condemned
  sameLists and sameVersions and sameWriters and sameBranches
}

pred stutter { sameObjects and sameLists and sameVersions and sameWriters and sameBranches }

pred step {
  stutter or markVersions or condemnVersions or mark or condemn or spareUsed or claim or crash
  or (some o: Object | sweep[o])
  or (some w: Writer | find[w] or spareOwn[w] or publish[w])
  or (some b: Branch, v: Version | reset[b, v])
  or (some b: Branch | deleteBranch[b] or restoreBranch[b] or forgetBranch[b])
}

fact trace { init and always step }

-- Promises

fun shown: set Version { Live.(Catalog.view) }
pred viewsAreStored { always shown.objects in Stored }
pred viewsAreNotCondemned { always no shown & Old }
-- An object may be condemned and shown between the two steps of one cleanup, and is never deleted.
pred shownObjectsAreSpared { always no shown.objects & (Condemned - Unconfirmed) }
pred retainedBranchesCanBeRestored { always Deleted.(Catalog.view).objects in Stored }

check ViewsAreStored { sound implies viewsAreStored } for 2 but 3 Object, 6..6 steps expect 0
check ViewsAreNotCondemned { sound implies viewsAreNotCondemned } for 2 but 3 Object, 6..6 steps expect 0
check ShownObjectsAreSpared { sound implies shownObjectsAreSpared } for 2 but 3 Object, 6..6 steps expect 0
check RetainedBranchesCanBeRestored { sound implies retainedBranchesCanBeRestored } for 2 but 3 Object, 6..6 steps expect 0

check TwinCondemnedPublished { without[DoorRejectsCondemned] implies viewsAreStored } for 2 but 3 Object, 8 steps expect 1
check TwinCondemnedUnchecked { without[CheckedAtCondemning] implies viewsAreNotCondemned } for 2 but 3 Object, 8 steps expect 1
check TwinUsedNotSpared { without[SparedAfterCondemning] implies shownObjectsAreSpared } for 2 but 3 Object, 8 steps expect 1
check TwinSweepWithoutSecondMark { without[SecondMark] implies viewsAreStored } for 2 but 3 Object, 8 steps expect 1
check TwinSweepOfSparedMarks { without[ClaimedUnchanged] implies viewsAreStored } for 2 but 3 Object, 8 steps expect 1
check TwinSparedDuringSweep { without[SweepLock] implies viewsAreStored } for 2 but 3 Object, 8 steps expect 1
check TwinSparedWithoutBytes { without[BytesBeforeSparing] implies viewsAreStored } for 2 but 3 Object, 8 steps expect 1
check TwinMarkForgottenAtSweep { without[MarkOutlivesBytes] implies viewsAreStored } for 2 but 3 Object, 8 steps expect 1
check TwinDeletedBranchesNotKept { without[DeletedBranchesAreRoots] implies retainedBranchesCanBeRestored } for 2 but 3 Object, 8 steps expect 1

run Everything {
  sound
  eventually some Object - Stored
  eventually some w: Writer | publish[w]
} for 2 but 3 Object, 8 steps expect 1
