/*
 * Branches of the whole store: planned, not implemented yet.
 *
 * A store branch is declared in one row, with its parent. It shows its own view of a dataset, else
 * that of its parent: as it moves, or as it was at the publication to which the branch is pinned.
 */
module store_branches

abstract sig Rule {}
one sig PinnedReads, WholeReverts, Reparenting, RestoreWhole extends Rule {}
one sig Design { rules: set Rule }
pred keeps[rule: Rule] { rule in Design.rules }
pred sound { Design.rules = Rule }
pred without[rule: Rule] { Design.rules = Rule - rule }

sig Dataset {}
sig Value {}
sig StoreBranch { parent: lone StoreBranch }
fact { no b: StoreBranch | b in b.^parent }
-- An atomic build or write: one value for each of its datasets, on one branch.
sig Change { on: one StoreBranch, sets: Dataset -> lone Value } { some sets }

var sig Live, Deleted, Pinned in StoreBranch {}
var sig Landed, Reverted in Change {}
one sig Catalog {
  -- Own views of a branch.
  var view: StoreBranch -> Dataset -> lone Value,
  -- What the parent showed when the branch was pinned.
  var pin: StoreBranch -> Dataset -> lone Value,
  -- Views before a change, to revert it.
  var was: Change -> Dataset -> lone Value,
  -- Parents of the dataset's branches: the nearest declared ancestor that has one.
  var above: StoreBranch -> Dataset -> lone StoreBranch
}

-- Nearest branch of the chain that has a view of a dataset.
fun source[b: StoreBranch, d: Dataset]: lone StoreBranch {
  { c: b.*parent & Live | some Catalog.view[c][d] and no e: b.*parent & Live |
    e != c and c in e.^parent and some Catalog.view[e][d] }
}
fun shown[b: StoreBranch, d: Dataset]: lone Value {
  some Catalog.view[b][d] implies Catalog.view[b][d]
  else (b in Pinned and keeps[PinnedReads]) implies Catalog.pin[b][d]
  else Catalog.view[source[b, d]][d]
}

pred init {
  no Deleted and no Pinned and no Landed and no Reverted and no Catalog.pin and no Catalog.was
  no Catalog.above
  Live = { b: StoreBranch | no b.parent } and Catalog.view in Live -> Dataset -> Value
}

pred sameNames { Live' = Live and Deleted' = Deleted and Pinned' = Pinned and Catalog.pin' = Catalog.pin }
pred sameChanges { Landed' = Landed and Reverted' = Reverted and Catalog.was' = Catalog.was }

pred declare[b: StoreBranch] {
  b not in Live + Deleted and b.parent in Live
  Live' = Live + b and Deleted' = Deleted and Pinned' = Pinned and Catalog.pin' = Catalog.pin
  Catalog.view' = Catalog.view and Catalog.above' = Catalog.above and sameChanges
}

pred declarePinned[b: StoreBranch] {
  b not in Live + Deleted and b.parent in Live
  Live' = Live + b and Deleted' = Deleted and Pinned' = Pinned + b
  Catalog.pin' = Catalog.pin + { x: b, d: Dataset, v: shown[b.parent, d] }
  Catalog.view' = Catalog.view and Catalog.above' = Catalog.above and sameChanges
}

pred sameParents { Catalog.above' = Catalog.above }

-- Nearest declared ancestor that has a view of a dataset after this step.
fun nearest[b: StoreBranch, d: Dataset]: lone StoreBranch {
  { c: b.^parent & Live | some Catalog.view'[c][d] and no e: b.^parent & Live |
    c in e.^parent and some Catalog.view'[e][d] }
}

-- A publication. A branch of a dataset that appears stands between its ancestors and descendants.
pred land[c: Change] {
  c not in Landed and c.on in Live
  all b: StoreBranch, d: Dataset | Catalog.view'[b][d] =
    ((b = c.on and some c.sets[d]) implies c.sets[d] else Catalog.view[b][d])
  all b: StoreBranch, d: Dataset |
    let moves_ = { x: b | no Catalog.view[c.on][d] and some c.sets[d] and some Catalog.view'[x][d]
      and (x = c.on or (keeps[Reparenting] and c.on in x.^parent)) } |
    Catalog.above'[b][d] = (some moves_ implies nearest[b, d] else Catalog.above[b][d])
  Catalog.was' = Catalog.was + { x: c, d: c.sets.Value, v: Catalog.view[c.on][d] }
  Landed' = Landed + c and Reverted' = Reverted and sameNames
}

-- Undoes one publication; refused if a later one changed a dataset of it.
pred revert[c: Change] {
  c in Landed - Reverted and c.on in Live
  let datasets = c.sets.Value,
      free = { d: datasets | Catalog.view[c.on][d] = c.sets[d] and some Catalog.was[c][d] },
      undone = (keeps[WholeReverts] implies datasets else free) {
    keeps[WholeReverts] implies free = datasets
    some undone
    all b: StoreBranch, d: Dataset | Catalog.view'[b][d] =
      ((b = c.on and d in undone) implies Catalog.was[c][d] else Catalog.view[b][d])
  }
  Landed' = Landed and Reverted' = Reverted + c and Catalog.was' = Catalog.was
  sameNames and sameParents
}

pred delete[b: StoreBranch] {
  b in Live and some b.parent and no parent.b & Live
  Live' = Live - b and Deleted' = Deleted + b
  Pinned' = Pinned and Catalog.pin' = Catalog.pin and Catalog.view' = Catalog.view
  sameChanges and sameParents
}

pred restore[b: StoreBranch] {
  b in Deleted and b.parent in Live
  Live' = Live + b and Deleted' = Deleted - b and Pinned' = Pinned and Catalog.pin' = Catalog.pin
  keeps[RestoreWhole] implies Catalog.view' = Catalog.view
    else some d: Dataset | Catalog.view' = Catalog.view - b -> d -> Value
  sameChanges and sameParents
}

pred stutter { Catalog.view' = Catalog.view and sameNames and sameChanges and sameParents }
pred step {
  stutter or (some c: Change | land[c] or revert[c])
  or (some b: StoreBranch | declare[b] or declarePinned[b] or delete[b] or restore[b])
}
fact trace { init and always step }

-- Promises

-- A pinned branch changes only by its own publications.
pred pinsHold {
  always all b: Pinned & Live, d: Dataset |
    (no c: Change | c.on = b and (land[c] or revert[c])) and b in Live' implies
      shownAfter[b, d] = shown[b, d]
}
fun shownAfter[b: StoreBranch, d: Dataset]: lone Value {
  some Catalog.view'[b][d] implies Catalog.view'[b][d]
  else (b in Pinned' and keeps[PinnedReads]) implies Catalog.pin'[b][d]
  else Catalog.view'[nearest[b, d]][d]
}
pred revertsAreWhole {
  always all c: Change | revert[c] implies
    all d: c.sets.Value | Catalog.view'[c.on][d] = Catalog.was[c][d]
}
pred ancestryIsDeclared {
  always all b: Live, d: Dataset | some Catalog.view[b][d] and some b.parent and b in Landed.on
    implies Catalog.above[b][d] = source[b.parent, d]
}
pred restoredAsDeleted {
  always all b: StoreBranch | restore[b] implies Catalog.view'[b] = Catalog.view[b]
}

check PinsHold { sound implies pinsHold } for 3 but 2 Dataset, 2 Value, 2 Change, 6..6 steps expect 0
check RevertsAreWhole { sound implies revertsAreWhole } for 3 but 2 Dataset, 2 Value, 2 Change, 6..6 steps expect 0
check AncestryIsDeclared { sound implies ancestryIsDeclared } for 3 but 2 Dataset, 2 Value, 2 Change, 6..6 steps expect 0
check RestoredAsDeleted { sound implies restoredAsDeleted } for 3 but 2 Dataset, 2 Value, 2 Change, 6..6 steps expect 0

check TwinPinReadsThePresent { without[PinnedReads] implies pinsHold } for 3 but 2 Dataset, 2 Value, 2 Change, 6 steps expect 1
check TwinRevertByDataset { without[WholeReverts] implies revertsAreWhole } for 3 but 2 Dataset, 2 Value, 2 Change, 6 steps expect 1
check TwinNotReparented { without[Reparenting] implies ancestryIsDeclared } for 3 but 2 Dataset, 2 Value, 2 Change, 6 steps expect 1
check TwinRestoreInParts { without[RestoreWhole] implies restoredAsDeleted } for 3 but 2 Dataset, 2 Value, 2 Change, 6 steps expect 1

run Everything {
  sound
  eventually some b: StoreBranch | declarePinned[b]
  eventually some c: Change | revert[c]
  eventually some b: StoreBranch | restore[b]
} for 3 but 2 Dataset, 2 Value, 2 Change, 6 steps expect 1
